"""Hugging Face to Megatron's ``torch`` format: every rank file of a stage is filled at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT, CheckpointLayout, checkpoint_args
from mindspeed_llm.checkpoint.placement import chunk_entries, part_dims
from mindspeed_llm.checkpoint.planned_file import PlannedFile, TensorSpec
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.checkpoint.torch_file import plan_torch_file
from mindspeed_llm.checkpoint.work import fill
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.splits import TensorParallel

ITERATION = 1
"""Iteration number of a converted checkpoint; training starts from it at 0 all the same."""
CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True)
class Item:
    """One Megatron tensor of one stage, on all tensor-parallel ranks."""

    slot: str
    entry: Mapping


class MegatronWriter:
    """Writes one iteration folder.

    Args:
        source: where the weights come from.
        layout: how to divide them.
        cast: the type change.
    """

    def __init__(self, source: WeightSource, layout: CheckpointLayout, cast: Caster) -> None:
        self._source = source
        self._layout = layout
        self._cast = cast
        self._ranks = [layout.at(source.shape, rank) for rank in range(layout.tensor_parallel)]

    def check(self) -> None:
        """Raise UserError where one Megatron tensor would come from tensors of several types."""
        if self._cast.dtype is not None:
            return
        for entry in self._source.entries():
            dtypes = self._source.dtypes(entry)
            if len(dtypes) > 1:
                kinds = " and ".join(sorted(DTYPE_SHORT[dtype] for dtype in dtypes))
                raise UserError(
                    f"{', '.join(entry.hf)} become one tensor in Megatron but are stored in "
                    f"different types ({kinds}); choose one for all with --params-dtype"
                )

    def nbytes(self) -> int:
        """Bytes of tensor data that will be written, over all files."""
        return sum(spec.nbytes for spec in self._specs())

    def tensors(self) -> int:
        """Number of tensors that will be written, over all files."""
        return sum(1 for _ in self._specs())

    def main_dtype(self) -> torch.dtype:
        """The type that most of the written weights have."""
        return self._cast.target(self._source.main_dtype())

    def write(self, folder: Path, wrote: Callable[[int], object]) -> None:
        """Write all rank folders into ``folder``; ``wrote`` is told the bytes as they go."""
        for stage in range(self._layout.pipeline.pipeline_parallel):
            with ExitStack() as stack:
                files = []
                for at in self._ranks:
                    files.append(self._plan(folder, stage, at))
                    stack.callback(files[-1].close)
                self._fill(stage, files, wrote)

    def _fill(self, stage: int, files: list[PlannedFile], wrote: Callable[[int], object]) -> None:
        def move(item: Item) -> int:
            count = 0
            for at, file in zip(self._ranks, files, strict=True):
                rows = self._source.part_rows(item.entry, at)
                count += file.write(item.slot, self._cast(item.entry.megatron, rows))
            return count

        fill(move, self._items(stage), files, wrote)

    def _items(self, stage: int) -> list[Item]:
        return [
            Item(f"{key}/{name}", entry)
            for chunk, key in enumerate(self._layout.pipeline.chunk_keys())
            for name, entry in self._chunk(stage, chunk)
        ]

    def _chunk(self, stage: int, chunk: int) -> Iterator[tuple[str, Mapping]]:
        source = self._source
        return chunk_entries(source.family, source.shape, self._layout.pipeline, stage, chunk)

    def _spec(self, entry: Mapping, at: TensorParallel) -> TensorSpec:
        dtype = self._cast.target(self._source.dtype(entry))
        return TensorSpec(dtype, part_dims(entry, self._source.shape, at))

    def _specs(self) -> Iterator[TensorSpec]:
        for stage in range(self._layout.pipeline.pipeline_parallel):
            for item in self._items(stage):
                for at in self._ranks:
                    yield self._spec(item.entry, at)

    def _plan(self, folder: Path, stage: int, at: TensorParallel) -> PlannedFile:
        pipeline = self._layout.pipeline
        specs = {
            key: {name: self._spec(entry, at) for name, entry in self._chunk(stage, chunk)}
            for chunk, key in enumerate(pipeline.chunk_keys())
        }
        source = self._source
        dtype = DTYPE_SHORT[self.main_dtype()]
        content = {
            "args": checkpoint_args(source.family, source.shape, self._layout, dtype),
            "checkpoint_version": CHECKPOINT_VERSION,
            "iteration": ITERATION,
        }
        rank = paths.rank_folder(at.rank, stage, pipeline.pipeline_parallel)
        (folder / rank).mkdir()
        return plan_torch_file(folder / rank / paths.RANK_FILE, content, specs)
