"""Weights of any source to Megatron's ``torch_dist`` format, through torch.distributed.checkpoint.

Each tensor is stored whole, as Megatron would store it from a model of any layout: layers stacked
if all are alike, experts stacked, norms under the names of the layers that follow them. The
planner hands out one tensor at a time, so no more than one lies in memory.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.dist_source import state_prefix
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT, CheckpointLayout, checkpoint_args
from mindspeed_llm.checkpoint.placement import sharded_place
from mindspeed_llm.checkpoint.planned_file import TensorSpec
from mindspeed_llm.checkpoint.source import WeightSource, check_types
from mindspeed_llm.checkpoint.to_megatron import CHECKPOINT_VERSION
from mindspeed_llm.checkpoint.training_state import WEIGHTS_ONLY, TrainingState
from mindspeed_llm.checkpoint.work import Work
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.splits import REPLICATED
from mindspeed_llm.models.transforms import stack_rows

_LINEAR = re.compile(r"\.(linear_\w+|eh_proj)\.weight$")

BACKEND = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""What Megatron's reader looks for in ``metadata.json``."""


@dataclass(frozen=True)
class Stored:
    """One tensor, and where it goes: a range of the stored tensor ``key``."""

    source: WeightSource
    cast: Caster
    entry: Mapping
    key: str
    size: tuple[int, ...]
    offsets: tuple[int, ...]
    spec: TensorSpec

    def write_item(self) -> WriteItem:
        """What torch.distributed.checkpoint is asked to write."""
        leading = len(self.size) - len(self.spec.dims)
        chunk = ChunkStorageMetadata(
            torch.Size(self.offsets), torch.Size((1,) * leading + self.spec.dims)
        )
        return WriteItem(
            index=MetadataIndex(self.key, torch.Size(self.offsets)),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(
                chunk, TensorProperties(dtype=self.spec.dtype), torch.Size(self.size)
            ),
        )


class DistWriter:
    """Writes one iteration folder.

    Args:
        source: where the weights come from.
        layout: what the checkpoint says of itself; vocabulary and heads are padded for it.
        cast: the type change; an optimizer's states keep theirs.
        training: what else the checkpoint holds.
    """

    def __init__(
        self,
        source: WeightSource,
        layout: CheckpointLayout,
        cast: Caster,
        training: TrainingState = WEIGHTS_ONLY,
    ) -> None:
        self._source = source
        self._training = training
        self._layout = layout
        self._cast = cast
        # One rank that has everything, with the padding of all.
        self._whole = replace(layout.at(source.shape, 0), size=1, experts=None)

    def check(self) -> None:
        """Raise UserError where one Megatron tensor would come from tensors of several types."""
        check_types(self._source, self._cast)

    def nbytes(self) -> int:
        """Bytes of tensor data that will be written."""
        return sum(stored.spec.nbytes for stored in self._stored)

    def tensors(self) -> int:
        """Number of tensors that will be written."""
        return len(self._stored)

    def main_dtype(self) -> torch.dtype:
        """The type that most of the written weights have."""
        return self._cast.target(self._source.main_dtype())

    def write(self, folder: Path, work: Work) -> None:
        """Write the checkpoint's files into ``folder``; one that was begun is begun anew."""
        source, dtype = self._source, DTYPE_SHORT[self.main_dtype()]
        writer = _Writer(folder, single_file_per_rank=True, thread_count=1)
        planner = _Planner(self._stored, self._empty_states(), self._tensor, work)
        writer.set_up_storage_writer(is_coordinator=True)
        plan, metadata = planner.plan()
        (plan,) = writer.prepare_global_plan([writer.prepare_local_plan(plan)])
        results = writer.write_data(plan, planner).wait()
        writer.finish(metadata, [results])
        args = checkpoint_args(source.family, source.shape, self._layout, dtype)
        self._training.complete(args)
        common = {
            "args": args,
            "checkpoint_version": CHECKPOINT_VERSION,
            "iteration": self._training.iteration,
            **self._training.common,
        }
        torch.save(common, folder / "common.pt")
        (folder / "metadata.json").write_text(json.dumps(BACKEND))

    @cached_property
    def _stored(self) -> list[Stored]:
        """Every tensor with its place."""
        found = self._of(self._source, self._cast, "")
        for name, states in self._training.states.items():
            found += self._of(states, Caster(None), f"{state_prefix(name)}.")
        return found

    def _of(self, source: WeightSource, cast: Caster, prefix: str) -> list[Stored]:
        found = []
        shape = source.shape
        for entry in filter(source.has, source.entries()):
            key, sizes, indices = sharded_place(entry, shape)
            dims = entry.split.part_dims(entry.dims(shape), self._whole)
            spec = TensorSpec(cast.of(entry).target(source.dtype(entry)), dims)
            offsets = (*indices, *(0 for _ in dims))
            size = (*sizes, *dims)
            found.append(Stored(source, cast, entry, prefix + key, size, offsets, spec))
        return found

    def _empty_states(self) -> list[str]:
        """Keys of what Megatron's linear layers store beside their weights, which is nothing.

        Its reader asks for them all the same.
        """
        keys = []
        for entry in self._source.entries():
            if _LINEAR.search(entry.megatron) and entry.split is not REPLICATED:
                key, sizes, indices = sharded_place(entry, self._source.shape)
                index = ".".join(map(str, indices or (0,)))
                size = ".".join(map(str, sizes or (1,)))
                keys.append(f"{key.removesuffix('weight')}_extra_state/shard_{index}_{size}")
        return keys

    def _tensor(self, stored: Stored) -> Tensor:
        rows = stored.source.part_rows(stored.entry, self._whole)
        tensor = stack_rows(stored.cast.of(stored.entry)(stored.entry.megatron, rows))
        leading = len(stored.size) - len(stored.spec.dims)
        return tensor.contiguous().view((1,) * leading + tuple(tensor.shape))


class _Writer(FileSystemWriter):
    """PyTorch's writer; its table of contents does not name the temporary folder."""

    def storage_meta(self) -> None:
        return None


class _Planner(SavePlanner):
    """Plans one chunk a tensor, and reads each when it is to be written."""

    def __init__(self, stored: list[Stored], empty: list[str], read: Any, work: Work) -> None:
        self._empty = empty
        self._stored = {(s.key, s.offsets): s for s in stored}
        self._read = read
        self._work = work

    def plan(self) -> tuple[SavePlan, Metadata]:
        """The plan of the only process, and the table of contents that it leads to."""
        from torch.distributed.checkpoint.default_planner import create_default_global_save_plan

        items = [stored.write_item() for stored in self._stored.values()]
        items += [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in self._empty]
        (plan,), metadata = create_default_global_save_plan([SavePlan(items)])
        return plan, metadata

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        index = write_item.index
        if index.offset is None:
            content = io.BytesIO()
            torch.save([None], content)
            return content
        tensor = self._read(self._stored[index.fqn, tuple(index.offset)])
        self._work.wrote(tensor.nbytes)
        return tensor

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("plans are made by plan()")

    create_local_plan = create_global_plan = finish_plan = set_up_planner  # type: ignore[assignment]
