"""``inference.py`` / ``mindspeed-llm generate``: continue one or more texts.

::

    mindspeed-llm generate --load HF_DIR --prompt "The capital of France is"
    echo "Once upon a time" | mindspeed-llm generate --load CKPT --nproc 2 \
        --tensor-model-parallel-size 2 --temperature 0.8 --seed 7
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.console import box, rank
from mindspeed_llm.flags import Config, parse
from mindspeed_llm.launch import is_rank, launch

if TYPE_CHECKING:
    from mindspeed_llm.data.tokenizer import Tokenizer
    from mindspeed_llm.inference.engine import NewToken, Request
    from mindspeed_llm.inference.sampling import Sampling
    from mindspeed_llm.inference.setup import Generator

TOOL = "inference"
TITLES = {"greedy": "Greedy Search", "do_sample": "Sampling"}
_SAMPLING_FLAGS = frozenset({"temperature", "top_k", "top_p"})


def main(argv: list[str]) -> int:
    """Parse, start the processes if asked to, generate."""
    cfg = parse(TOOL, argv, prog="mindspeed-llm generate")
    if cfg.parallel.nproc and not is_rank():
        return launch("mindspeed_llm.cli", ["generate", *argv], cfg.parallel.nproc)
    from mindspeed_llm import distributed
    from mindspeed_llm.inference.setup import build_generator

    try:
        generator = build_generator(cfg)
        _announce(cfg, generator)
        if generator.position.data == 0:
            _answer_all(cfg, generator)
    finally:
        distributed.shutdown()
    return 0


def tasks(cfg: Config) -> tuple[str, ...]:
    """The decoding modes to run: ``--task``, else sampling if one of its flags is given."""
    if cfg.inference.task:
        return cfg.inference.task
    return ("do_sample",) if _SAMPLING_FLAGS & cfg.given else ("greedy",)


def sampling(cfg: Config, task: str, number: int) -> Sampling:
    """How prompt ``number`` is continued; each has its own seed, counted from ``--seed``."""
    from mindspeed_llm.inference.sampling import Sampling

    if task == "greedy":
        return Sampling()
    flags = cfg.inference
    return Sampling(flags.temperature, flags.top_k, flags.top_p, cfg.training.seed + number)


def _announce(cfg: Config, generator: Generator) -> None:
    at = generator.position
    modes = ", ".join(sampling(cfg, task, 0).describe() for task in tasks(cfg))
    lines = [
        f"device    {at.device.name} ({at.device.reason})",
        f"layout    {at.describe()}",
        f"dtype     {cfg.params_dtype}",
        f"decoding  {modes}; at most {cfg.inference.max_new_tokens} new tokens; key/value cache "
        + ("on" if generator.engine.cached else "off"),
    ]
    lines += [f"model     {line}" for line in generator.notes]
    lines += [f"inactive  {line}" for line in cfg.inactive_flags(at.device.name)]
    box("mindspeed-llm generate", lines)


def _answer_all(cfg: Config, generator: Generator) -> None:
    from mindspeed_llm.inference.engine import Request
    from mindspeed_llm.inference.prompts import prompt_sets

    for prompts in prompt_sets(cfg.inference.prompt):
        ids = [_encode(generator.tokenizer, prompt) for prompt in prompts]
        for task in tasks(cfg):
            requests = [
                Request(prompt, cfg.inference.max_new_tokens, sampling(cfg, task, number))
                for number, prompt in enumerate(ids)
            ]
            live = cfg.inference.stream or sys.stdout.isatty()
            _run(generator, TITLES[task], prompts, requests, live)


def _encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A prompt's ids; an empty one is the token that starts a text."""
    ids = tokenizer.encode(prompt)
    if not ids and tokenizer.bos is not None:
        return [tokenizer.bos]
    if not ids:
        raise UserError("a prompt is empty, and this tokenizer has no token that starts a text")
    return ids


def _run(
    generator: Generator, title: str, prompts: tuple[str, ...], requests: list[Request], live: bool
) -> None:
    _write(f"\n=============== {title} ================\n")
    transcript = Transcript(generator.tokenizer, prompts, requests, live)
    start, count = time.perf_counter(), 0
    for new in generator.engine.stream(requests):
        transcript.add(new, ends=new.token in generator.engine.end_tokens)
        count += 1
    elapsed = time.perf_counter() - start
    _write(f"\nElapsed: {elapsed:.2f}s ({count} tokens, {count / elapsed:.1f} tokens/s)\n")


def _write(text: str) -> None:
    if rank() == 0:
        sys.stdout.write(text)
        sys.stdout.flush()


class Transcript:
    """Answers on the terminal in the order of their prompts, while they grow side by side.

    Args:
        live: show the answer that is next in order as it grows, not only when it is complete.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompts: tuple[str, ...], requests: list[Request], live: bool
    ) -> None:
        from mindspeed_llm.inference.text import TextStream

        def decode(ids) -> str:
            return tokenizer.decode(ids, skip_special_tokens=True)

        self._streams = [TextStream(decode, request.prompt) for request in requests]
        self._pending = [f"\nYou:\n{prompt}\n\nMindSpeed-LLM:\n" for prompt in prompts]
        self._finished = [False] * len(requests)
        self._next = 0
        self._live = live

    def add(self, new: NewToken, ends: bool) -> None:
        """Take in a token; an end token is not shown."""
        stream = self._streams[new.request]
        piece = "" if ends else stream.push(new.token)
        if new.finish is not None:
            piece += stream.finish() + "\n"
            self._finished[new.request] = True
        self._pending[new.request] += piece
        self._show()

    def _show(self) -> None:
        while self._next < len(self._pending):
            finished = self._finished[self._next]
            if finished or self._live:
                _write(self._pending[self._next])
                self._pending[self._next] = ""
            if not finished:
                return
            self._next += 1
