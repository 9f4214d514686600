"""What a conversion says: its plan before, its result and the next command after.

The result is also kept as ``conversion.json`` beside the weights.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.hf_source import HfSource
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT, CheckpointLayout
from mindspeed_llm.checkpoint.side_files import REPORT
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.checkpoint.verify import Check
from mindspeed_llm.console import box, say, warn
from mindspeed_llm.models.shape import padded_query_groups


@dataclass(frozen=True)
class Report:
    """What a conversion did.

    Attributes:
        source, target: folder and layout of both sides.
        read: weight-map entries consumed, each once.
        written: tensors written, each once, over all files.
        nbytes: bytes of these tensors.
        kept: how many of these an earlier, killed run had written.
        dtype: type of most weights written.
        not_finite: names of the tensors with NaN or infinite values, which are carried over.
        checks: what was verified.
        seconds: from start to durable end; seconds_verifying: the checks.
    """

    family: str
    parameters: int
    source: dict[str, str]
    target: dict[str, str]
    read: int
    written: int
    nbytes: int
    kept: int
    dtype: str
    not_finite: list[str]
    notes: list[str]
    checks: list[Check]
    seconds: float
    seconds_verifying: float

    def save(self, folder: Path) -> None:
        """Write the report into ``folder``."""
        values = dataclasses.asdict(self)
        (folder / REPORT).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Report:
        """The inverse of :meth:`save`."""
        values: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        values["checks"] = [Check(**check) for check in values["checks"]]
        return cls(**values)

    def show(self, hint: str) -> None:
        """Print the box at the end, and a warning if values were not finite.

        Args:
            hint: the command to go on with.
        """
        wrote = self.nbytes - self.kept
        speed = wrote / max(self.seconds, 1e-9) / 1e6
        kept = f" (and {self.kept:,} by the run that was interrupted)" if self.kept else ""
        lines = [
            f"tensors   {self.read} read, {self.written} written, each once",
            f"bytes     {wrote:,} in {self.seconds:.1f} s ({speed:,.0f} MB/s, on the disk){kept}",
            *self.notes,
            *(f"{'✓' if c.done else '–'} {c.name:<11} {c.text}" for c in self.checks),
            f"next      {hint}",
        ]
        box("converted", lines)
        if self.not_finite:
            some, count = ", ".join(self.not_finite[:3]), len(self.not_finite)
            warn(f"{count} tensors hold NaN or infinite values ({some}); carried over as is")


def announce(source: WeightSource, target: str, cast: Caster) -> None:
    """Say what will be done, in one line."""
    stored = DTYPE_SHORT[source.main_dtype()]
    dtype = f"cast {stored} -> {DTYPE_SHORT[cast.dtype]}" if cast.dtype else f"{stored} kept"
    size = source.family.num_parameters(source.shape) / 1e6
    say(f"{source.family.name}, {size:,.1f}M parameters: {source.describe()} -> {target}, {dtype}")


def source_notes(source: WeightSource, layout: CheckpointLayout) -> list[str]:
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
    if not isinstance(source, HfSource):
        return notes
    if source.redundant_output:
        notes.append(f"tied      {source.redundant_output} equals the table; export repeats it")
    if source.ignored:
        notes.append(f"left out  {len(source.ignored)} rotary buffers (computed from the config)")
    return notes


def training_hint(save: Path, layout: CheckpointLayout) -> str:
    """The command that trains from a converted checkpoint."""
    pipeline = layout.pipeline
    command = f"pretrain_gpt.py --load {save}"
    if layout.tensor_parallel > 1:
        command += f" --tensor-model-parallel-size {layout.tensor_parallel}"
    if pipeline.pipeline_parallel > 1:
        command += f" --pipeline-model-parallel-size {pipeline.pipeline_parallel}"
    if pipeline.uneven:
        command += f" --num-layer-list {pipeline.describe()}"
    if pipeline.noop_layers:
        command += f" --noop-layers {','.join(map(str, pipeline.noop_layers))}"
    if layout.experts is not None and layout.experts.parallel > 1:
        command += f" --expert-model-parallel-size {layout.experts.parallel}"
    return command + " …  (any other TP/PP works too)"
