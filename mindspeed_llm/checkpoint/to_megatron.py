"""Hugging Face to Megatron's ``torch`` format: every rank file of a stage is filled at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT, CheckpointLayout, checkpoint_args
from mindspeed_llm.checkpoint.placement import Held, held_tensors, part_dims
from mindspeed_llm.checkpoint.planned_file import PlannedFile, TensorSpec
from mindspeed_llm.checkpoint.source import WeightSource, check_types
from mindspeed_llm.checkpoint.torch_file import Planned, Stack, plan_torch_file, whole_of
from mindspeed_llm.checkpoint.training_state import WEIGHTS_ONLY, TrainingState
from mindspeed_llm.checkpoint.work import Work, fill
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.splits import TensorParallel
from mindspeed_llm.models.transforms import stack_rows

CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True)
class Place:
    """Where one rank file takes an entry's tensor.

    Attributes:
        file: number of the rank.
        stacked: whether it lies transposed among other experts' tensors.
    """

    file: int
    slot: str
    at: TensorParallel
    stacked: bool


@dataclass(frozen=True)
class Item:
    """One weight-map entry, and all places of a stage that take a part of it."""

    entry: Mapping
    source: WeightSource
    cast: Caster
    places: list[Place]


class MegatronWriter:
    """Writes one iteration folder.

    Args:
        source: where the weights come from.
        layout: how to divide them.
        cast: the type change; an optimizer's states keep theirs.
        training: what else goes into the files.
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
        self._sets: dict[str, tuple[WeightSource, Caster]] = {"": (source, cast)}
        for name, state in training.states.items():
            self._sets[f"optimizer.{name}."] = (state, Caster(None))
        self._layout = layout
        self._cast = cast
        self._ranks = layout.ranks(source.shape)

    def check(self) -> None:
        """Raise UserError where one Megatron tensor would come from tensors of several types."""
        check_types(self._source, self._cast)

    def nbytes(self) -> int:
        """Bytes of tensor data that will be written, over all files."""
        return self._totals[1]

    def tensors(self) -> int:
        """Number of tensors that will be written, over all files."""
        return self._totals[0]

    @cached_property
    def _totals(self) -> tuple[int, int]:
        """Tensors and bytes of all files: models with many experts have a great many of them."""
        sizes = [spec.nbytes for spec in self._specs()]
        return len(sizes), sum(sizes)

    def main_dtype(self) -> torch.dtype:
        """The type that most of the written weights have."""
        return self._cast.target(self._source.main_dtype())

    def write(self, folder: Path, work: Work) -> None:
        """Write all rank folders into ``folder``, without what ``work`` holds already."""
        for stage in range(self._layout.pipeline.pipeline_parallel):
            with ExitStack() as stack:
                files = []
                for at in self._ranks:
                    files.append(self._plan(folder, stage, at, work))
                    stack.callback(files[-1].close)
                self._fill(stage, files, work)

    def _fill(self, stage: int, files: list[PlannedFile], work: Work) -> None:
        def move(item: Item) -> int:
            count = 0
            wanting: dict[int, list[Place]] = defaultdict(list)
            for place in item.places:
                if not files[place.file].holds(place.slot):
                    wanting[place.at.rank].append(place)
            for places in wanting.values():
                rows = item.source.part_rows(item.entry, places[0].at)
                rows = item.cast.of(item.entry)(item.entry.megatron, rows)
                for place in places:
                    lying = [stack_rows(rows).t()] if place.stacked else rows
                    count += files[place.file].write(place.slot, lying)
            return count

        fill(move, self._items(stage), files, work)

    def _items(self, stage: int) -> list[Item]:
        items: list[Item] = []
        for prefix, (source, cast) in self._sets.items():
            for chunk, key in enumerate(self._layout.pipeline.chunk_keys()):
                by_name: dict[str, Item] = {}
                for file, at in enumerate(self._ranks):
                    for held in self._held(source, stage, chunk, at):
                        for number, entry in enumerate(held.entries):
                            # The last stage's copies of the table are tensors of their own.
                            same = held.name if entry.expert is None else entry.megatron
                            item = by_name.setdefault(same, Item(entry, source, cast, []))
                            slot = f"{prefix}{key}/{held.name}"
                            slot += f"#{number}" if held.stacked else ""
                            item.places.append(Place(file, slot, held.at, held.stacked))
                items += by_name.values()
        return items

    def _held(
        self, source: WeightSource, stage: int, chunk: int, at: TensorParallel
    ) -> Iterator[Held]:
        layout = self._layout
        for held in held_tensors(
            source.family, source.shape, layout.pipeline, stage, chunk, at, layout.grouped
        ):
            if source is self._source or source.has(held.entries[0]):
                yield held

    def _spec(self, prefix: str, held: Held) -> Planned:
        source, cast = self._sets[prefix]
        shape = source.shape
        dtype = cast.of(held.entries[0]).target(source.dtype(held.entries[0]))
        whole = TensorSpec(dtype, held.dims(shape))
        if not held.stacked:
            return whole
        columns, rows = part_dims(held.entries[0], shape, held.at)
        return Stack(whole, (TensorSpec(dtype, (rows, columns)),) * len(held.entries))

    def _specs(self) -> Iterator[TensorSpec]:
        for stage in range(self._layout.pipeline.pipeline_parallel):
            for at in self._ranks:
                for planned in self._planned(stage, at).values():
                    yield from map(whole_of, planned.values())

    def _planned(self, stage: int, at: TensorParallel) -> dict[str, dict[str, Planned]]:
        """The tensors of one rank file."""
        return {
            prefix + key: {
                held.name: self._spec(prefix, held) for held in self._held(source, stage, chunk, at)
            }
            for prefix, (source, _) in self._sets.items()
            for chunk, key in enumerate(self._layout.pipeline.chunk_keys())
        }

    def _plan(self, folder: Path, stage: int, at: TensorParallel, work: Work) -> PlannedFile:
        source = self._source
        dtype = DTYPE_SHORT[self.main_dtype()]
        args = checkpoint_args(source.family, source.shape, self._layout, dtype)
        self._training.complete(args)
        content = {
            "args": args,
            "checkpoint_version": CHECKPOINT_VERSION,
            "iteration": self._training.iteration,
            **self._training.common,
        }
        path = folder / self._layout.rank_folder(at, stage) / paths.RANK_FILE
        path.parent.mkdir(exist_ok=True)
        return plan_torch_file(path, content, self._planned(stage, at), work.held(path))
