"""Checks of a finished conversion, before its result is put in place.

- ``accounting``: what was written is opened again as any reader would; every tensor is there
  once, with its size. Always done.
- ``roundtrip``: every tensor is read back from the disk, through the weight map, and compared
  with the source bit by bit.
- ``logits``: both models compute the logits of a few tokens, one in ``transformers``, one here.

Each level includes those before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.logits import BOUND, Comparison
from mindspeed_llm.checkpoint.lora.merge import MergedSource
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT
from mindspeed_llm.checkpoint.source import WeightSource, open_source
from mindspeed_llm.checkpoint.work import THREADS
from mindspeed_llm.console import progress
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.splits import same_bits
from mindspeed_llm.models.transforms import Rows

ACCOUNTING, ROUNDTRIP, LOGITS = LEVELS = ("accounting", "roundtrip", "logits")

SMALL = 1_000_000_000
"""Parameters up to which logits are compared without being asked for."""
FP32_MODELS = 2
"""Models in memory at once, with 4 bytes a parameter."""


@dataclass(frozen=True)
class Check:
    """One check and its outcome.

    Attributes:
        done: False if it was left out; ``text`` says why.
        numbers: the measured values, for the report file.
    """

    name: str
    done: bool
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversion:
    """What a conversion read and wrote.

    Attributes:
        load: the folder as the user named it.
        written: the folder of the result.
        config_folder: where the original ``config.json`` was given, if it was.
    """

    source: WeightSource
    cast: Caster
    load: Path
    written: Path
    config_folder: str | None = None


def verify(conversion: Conversion, level: str | None) -> list[Check]:
    """Run the checks of ``level``; None: logits if the model is small, else accounting.

    Raises:
        UserError: a check failed.
    """
    written = open_source(conversion.written)
    done = [_accounting(conversion, written)]
    reason = too_large(conversion.source) if level is None else None
    wanted = level or (ACCOUNTING if reason else LOGITS)
    if wanted in (ROUNDTRIP, LOGITS):
        done.append(_roundtrip(conversion, written))
    if wanted == LOGITS:
        done.append(_logits(conversion, written, asked=level is not None))
    elif reason:
        done.append(Check(LOGITS, False, f"not compared: {reason} (--verify logits does)"))
    return done


def too_large(source: WeightSource) -> str | None:
    """Why the logits of a model are better not compared on this machine; None: they may be."""
    parameters = source.family.num_parameters(source.shape)
    if parameters > SMALL:
        return f"{parameters / 1e9:.1f}e9 parameters"
    needed, free = FP32_MODELS * 4 * parameters, available_memory()
    if free is not None and needed > 0.7 * free:
        return f"{needed / 1e9:.1f} GB of memory needed, {free / 1e9:.1f} GB free"
    return None


def available_memory() -> int | None:
    """Bytes that a program may take; None where the system does not tell."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return None


def _accounting(conversion: Conversion, written: WeightSource) -> Check:
    try:
        written.check()
    except UserError as error:
        raise _failed(ACCOUNTING, str(error)) from None
    count = len(conversion.source.entries())
    return Check(ACCOUNTING, True, f"{count} tensors read, none missing or left over")


def _roundtrip(conversion: Conversion, written: WeightSource) -> Check:
    source, cast = conversion.source, conversion.cast
    _forget(written.files)

    def same(entry: Mapping) -> int:
        back = written.hf_rows(entry)
        wanted = source.hf_rows(entry)
        for name, rows in wanted.items():
            if not equal_rows(cast.of(entry)(entry.megatron, rows), back[name]):
                raise _failed(ROUNDTRIP, f"{name} does not come back as it was ({entry.megatron})")
        return sum(part.nbytes for rows in back.values() for part in rows)

    total = 0
    for nbytes in _each(same, source.entries(), "verifying"):
        total += nbytes
    return Check(ROUNDTRIP, True, f"{total:,} bytes read back, equal bit by bit", {"bytes": total})


def _each(work: Callable[[Mapping], int], entries: Sequence[Mapping], text: str) -> Iterator[int]:
    with progress("B", None, text) as bar, ThreadPoolExecutor(THREADS) as pool:
        try:
            for future in as_completed([pool.submit(work, entry) for entry in entries]):
                bar.update(future.result())
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def equal_rows(one: Rows, other: Rows) -> bool:
    """Whether two lists of row ranges are the same tensor, however they are divided."""
    if {part.dtype for part in one} != {part.dtype for part in other}:
        return False
    if sum(len(part) for part in one) != sum(len(part) for part in other):
        return False
    left, right = _slices(one, other), _slices(other, one)
    return all(same_bits(a, b) for a, b in zip(left, right, strict=True))


def _slices(rows: Rows, others: Rows) -> Iterator[torch.Tensor]:
    """``rows``, cut where ``others`` are cut too."""
    ends = sorted({*_ends(rows), *_ends(others)})
    start, position, parts = 0, 0, iter(rows)
    part = next(parts)
    for end in ends:
        if position == len(part):
            part, position = next(parts), 0
        yield part[position : position + end - start]
        position, start = position + end - start, end


def _ends(rows: Rows) -> Iterator[int]:
    end = 0
    for part in rows:
        end += len(part)
        yield end


def _forget(files: Sequence[Path]) -> None:
    """Drop files from the system's memory, so that reading them asks the disk."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError, AttributeError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _logits(conversion: Conversion, written: WeightSource, asked: bool) -> Check:
    if conversion.cast.not_finite:
        result: dict[str, Any] = {"skipped": "weights that are NaN or infinite make every logit so"}
    else:
        result = _run(_command(conversion, written))
    if "skipped" in result:
        if asked:
            raise UserError(f"--verify logits: {result['skipped']}; use --verify roundtrip")
        return Check(LOGITS, False, f"not compared: {result['skipped']}")
    found = {name: Comparison(**numbers) for name, numbers in result.items()}
    text = "; ".join(_sentence(name, comparison) for name, comparison in found.items())
    if not all(comparison.equal for comparison in found.values()):
        raise _failed(
            LOGITS,
            f"{text}. The bound is {BOUND:.0e}: the two models differ. Please report this; "
            "--verify roundtrip converts without the comparison",
        )
    if conversion.source.shape.mtp_num_layers:
        text += "; layers of multi-token prediction take no part"
    numbers = {name: {**result[name], "relative": c.relative} for name, c in found.items()}
    return Check(LOGITS, True, text, {**numbers, "bound": BOUND})


def _sentence(name: str, found: Comparison) -> str:
    if name == "every_expert":
        return f"through every expert {found.relative:.1e}"
    return (
        f"max|Δ| {found.difference:.1e}, {found.relative:.1e} of the largest logit, next token "
        f"equal at {100 * found.agreement:.0f}% of {found.tokens} positions"
    )


def _command(conversion: Conversion, written: WeightSource) -> list[str]:
    """The program to run: a checkpoint of ours, and what it must equal."""
    load, result = str(conversion.load), str(conversion.written)
    config: Path | str | None
    if written.kind == "hf":
        ours, reference, config = load, result, conversion.config_folder
    else:
        # The converted config: layers may have been left out.
        ours, reference, config = result, load, written.side_folder
    command = [sys.executable, "-m", "mindspeed_llm.checkpoint.logits", ours, reference]
    if config is not None:
        command += ["--config", str(config)]
    dtype, source = conversion.cast.dtype, conversion.source
    if isinstance(source, MergedSource) and source.adapter.path != source.path:
        # Who merges in fp32 must round as the conversion did.
        dtype = dtype or written.main_dtype()
        side = "--lora" if written.kind == "hf" else "--reference-lora"
        adapter = source.adapter
        command += [side, str(adapter.path), "--lora-alpha", str(adapter.settings.alpha)]
    if dtype is not None:
        command += ["--rounded", DTYPE_SHORT[dtype]]
    return command


def _run(command: list[str]) -> dict[str, Any]:
    """The result of the comparison, computed alone and on the CPU: fp32 there is exact."""
    mine = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in mine}
    done = subprocess.run(
        command,
        env={**environment, "MINDSPEED_DEVICE": "cpu"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise _failed(LOGITS, f"the comparison ended with status {done.returncode}:\n{last}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _failed(name: str, text: str) -> UserError:
    return UserError(f"the result failed its check ({name}) and was removed: {text}")
