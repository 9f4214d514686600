"""What a conversion says: its plan before, its result and the next command after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.hf_source import HfSource
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT, CheckpointLayout
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.console import box, say, warn
from mindspeed_llm.models.shape import padded_query_groups


@dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
        read: weight-map entries consumed, each once.
        written: tensors written, each once, over all files.
        nbytes: bytes of these tensors.
        seconds: from start to durable end.
        not_finite: NaN and infinite values carried over.
    """

    read: int
    written: int
    nbytes: int
    seconds: float
    not_finite: int


def announce(source: WeightSource, target: str, cast: Caster) -> None:
    """Say what will be done, in one line."""
    stored = DTYPE_SHORT[source.main_dtype()]
    dtype = f"cast {stored} -> {DTYPE_SHORT[cast.dtype]}" if cast.dtype else f"{stored} kept"
    size = source.family.num_parameters(source.shape) / 1e6
    say(f"{source.family.name}, {size:,.1f}M parameters: {source.describe()} -> {target}, {dtype}")


def conclude(report: Report, cast: Caster, notes: Sequence[str]) -> None:
    """Print the box at the end, and a warning if values were not finite."""
    speed = report.nbytes / report.seconds / 1e6
    lines = [
        f"tensors   {report.read} read, {report.written} written, none missing or left over",
        f"bytes     {report.nbytes:,} in {report.seconds:.1f} s ({speed:,.0f} MB/s, on the disk)",
        *notes,
    ]
    box("converted", lines)
    if report.not_finite:
        some = ", ".join(cast.not_finite_in[:3])
        warn(f"{report.not_finite:,} values are NaN or infinite (in {some}); carried over as is")


def source_notes(source: HfSource, layout: CheckpointLayout) -> list[str]:
    """Lines on what is different in Megatron's form."""
    notes = []
    padding = layout.padded_vocab_size - source.shape.vocab_size
    if padding:
        notes.append(
            f"padding   vocabulary {source.shape.vocab_size} -> {layout.padded_vocab_size} rows, "
            "zeros; taken off again on export"
        )
    groups, heads = source.shape.num_query_groups, source.shape.num_attention_heads
    if (padded := padded_query_groups(source.shape, layout.tensor_parallel)) != groups:
        notes.append(
            f"padding   heads {heads} -> {heads // groups * padded}, key/value heads {groups} -> "
            f"{padded}, zeros that change nothing; taken off again on export"
        )
    if source.shape.tied and layout.pipeline.pipeline_parallel > 1:
        notes.append("tied      the last stage holds a copy of the embedding table")
    if source.redundant_output:
        notes.append(f"tied      {source.redundant_output} equals the table; export repeats it")
    if source.ignored:
        notes.append(f"left out  {len(source.ignored)} rotary buffers (computed from the config)")
    return notes


def training_hint(save: Path, layout: CheckpointLayout) -> str:
    """The command that trains from a converted checkpoint."""
    pipeline = layout.pipeline
    command = f"next      pretrain_gpt.py --load {save}"
    if layout.tensor_parallel > 1:
        command += f" --tensor-model-parallel-size {layout.tensor_parallel}"
    if pipeline.pipeline_parallel > 1:
        command += f" --pipeline-model-parallel-size {pipeline.pipeline_parallel}"
    if pipeline.uneven:
        command += f" --num-layer-list {pipeline.describe()}"
    return command + " …  (any other TP/PP works too)"
