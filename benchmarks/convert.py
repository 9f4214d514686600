"""Conversion against copying: time and memory, both directions, on a synthetic Llama checkpoint.

    python benchmarks/convert.py [--gigabytes 3] [--rounds 3] [--folder DIR] [--tp 2] [--pp 2]

The reference copies the same files with fsync on the same disk; runs alternate. Start-up (Python
and its imports) is left out of both. Memory is the peak of anonymous pages (``RssAnon``) of the
converting process, sampled every 10 ms: mapped files are page cache, not memory in use. Needs
three times the checkpoint's size on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from mindspeed_llm.checkpoint.planned_file import TensorSpec
from mindspeed_llm.checkpoint.safetensors_file import (
    INDEX,
    index_json,
    plan_safetensors_file,
    shard,
)
from mindspeed_llm.models.llama import LLAMA
from mindspeed_llm.models.shape import ModelShape

TIME_LIMIT = 1.5
MEMORY_MARGIN = 1.5e9
SHARD = 1_000_000_000


def make_checkpoint(folder: Path, gigabytes: float) -> None:
    """A Llama folder of random bf16 weights of about the given size."""
    layers = 4 * max(1, round((gigabytes * 1e9 / 2 - 131e6) / 60.8e6 / 4))
    shape = ModelShape(
        num_layers=layers,
        hidden_size=2048,
        ffn_hidden_size=8192,
        num_attention_heads=32,
        num_query_groups=8,
        kv_channels=64,
        vocab_size=32000,
        max_position_embeddings=4096,
        untie_embeddings_and_output_weights=True,
    )
    folder.mkdir(parents=True)
    config = LLAMA.hf_config(shape, "bfloat16")
    (folder / "config.json").write_text(json.dumps(config))
    specs = {
        name: TensorSpec(torch.bfloat16, dims)
        for entry in LLAMA.weights(shape).expand(shape)
        for name, dims in entry.hf_shapes(shape).items()
    }
    shards = shard(specs, SHARD)
    for file, group in shards.items():
        planned = plan_safetensors_file(folder / file, group)
        for name, spec in group.items():
            planned.write(name, [torch.randn(spec.dims).mul_(0.02).to(spec.dtype)])
        planned.finish()
    (folder / INDEX).write_text(index_json(shards))


def child(mode: str, *arguments: str) -> tuple[float, int]:
    """Run one measurement in its own process: (seconds without start-up, peak anonymous bytes)."""
    command = [sys.executable, __file__, "--child", mode, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.01)
    assert process.stdout is not None
    output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{mode} failed")
    return float(output.strip().splitlines()[-1]), peak


def anonymous_bytes(pid: int) -> int:
    """Anonymous memory of a process that is alive, else 0 (conversion starts no others)."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


def copy_files(source: Path, target: Path) -> None:
    """The reference: copy every file and make it durable."""
    for path in source.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            descriptor = os.open(copy, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def run_child(mode: str, arguments: list[str]) -> None:
    """What a child process does; its last line is the time taken."""
    # Both start up alike: a virtual machine takes freed memory back after a second or two, and
    # pages that must be had from it anew cost several times as much to write to.
    from mindspeed_llm.checkpoint.convert import convert
    from mindspeed_llm.flags import parse

    source, target = Path(arguments[0]), Path(arguments[1])
    if mode == "copy":
        start = time.perf_counter()
        copy_files(source, target)
    else:
        words = ["--load-dir", arguments[0], "--save-dir", *arguments[1:]]
        flags = parse("convert", [*words, "--verify", "accounting"])
        start = time.perf_counter()
        convert(flags.convert)
    print(time.perf_counter() - start)


def measure(name: str, source: Path, scratch: Path, rounds: int, flags: list[str]) -> Path:
    """Alternate copying and converting ``source``; print the ratios; keep one result."""
    ratios, copies, conversions, peak = [], [], [], 0
    for _ in range(rounds):
        shutil.rmtree(scratch / "copy", ignore_errors=True)
        shutil.rmtree(scratch / name, ignore_errors=True)
        copies.append(child("copy", str(source), str(scratch / "copy"))[0])
        shutil.rmtree(scratch / "copy")
        seconds, anonymous = child("convert", str(source), str(scratch / name), *flags)
        conversions.append(seconds)
        ratios.append(seconds / copies[-1])
        peak = max(peak, anonymous)
    files = [p.stat().st_size for p in (scratch / name).rglob("*") if p.is_file()]
    ratio = statistics.median(ratios)
    limit = max(files) + MEMORY_MARGIN
    print(
        f"{name}: copy {statistics.median(copies):.1f} s, convert "
        f"{statistics.median(conversions):.1f} s -> ratio {ratio:.2f} "
        f"(each {', '.join(f'{r:.2f}' for r in ratios)}; limit {TIME_LIMIT}) "
        f"{'ok' if ratio <= TIME_LIMIT else 'TOO SLOW'}\n"
        f"{name}: peak anonymous memory {peak / 1e9:.2f} GB, largest file {max(files) / 1e9:.2f} "
        f"GB -> ratio to the limit {peak / limit:.2f} (file + 1.5 GB) "
        f"{'ok' if peak <= limit else 'TOO MUCH'}",
        flush=True,
    )
    return scratch / name


def main() -> None:
    """Make the checkpoint, measure both directions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--tp", default="2")
    parser.add_argument("--pp", default="2")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.child:
        return run_child(options.child[0], [*options.child[1:], *rest])
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        make_checkpoint(folder / "hf", options.gigabytes)
        layout = ["--target-tensor-parallel-size", options.tp]
        layout += ["--target-pipeline-parallel-size", options.pp]
        megatron = measure("hf_to_mg", folder / "hf", folder, options.rounds, layout)
        shutil.rmtree(folder / "hf")
        back = ["--load-model-type", "mg", "--save-model-type", "hf"]
        measure("mg_to_hf", megatron, folder, options.rounds, back)


if __name__ == "__main__":
    main()
