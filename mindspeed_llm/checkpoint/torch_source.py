"""Weights in a Megatron checkpoint of format ``torch``: one file a model-parallel rank."""

from __future__ import annotations

import copy
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths, side_files
from mindspeed_llm.checkpoint.metadata import read_metadata
from mindspeed_llm.checkpoint.placement import (
    EMBEDDING,
    OUTPUT,
    canonical_name,
    held_tensors,
    is_adapter,
    is_weight,
    part_dims,
    stacked_name,
)
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.checkpoint.source import (
    WeightSource,
    name_problems,
    raise_problems,
    shape_of_one_rank,
)
from mindspeed_llm.models.mapping import Mapping, layer_of, with_layer
from mindspeed_llm.models.splits import TensorParallel, same_bits
from mindspeed_llm.models.transforms import Rows

_TENSORS = ("model", "optimizer.")
_SMALL = ("args", "iteration", "checkpoint_version", "optimizer", "opt_param_scheduler")
_STATE = re.compile(r"optimizer\.(\w+)\.model")


class TorchSource(WeightSource):
    """Rank files, mapped when first needed.

    Attributes:
        holds_adapter, holds_weights: whether there are LoRA pairs, which are left alone here, and
            whether there is anything else.
    """

    kind = "torch"

    def __init__(
        self, root: Path, iteration: paths.Iteration, hf_cfg_dir: Path | str | None = None
    ) -> None:
        self.path = paths.iteration_folder(root, iteration)
        self.iteration = None if iteration == paths.RELEASE else iteration
        self.side_folder = side_files.find(root, hf_cfg_dir)
        self._lock = threading.Lock()
        self._files: dict[str, dict[str, Any]] = {}
        self.holds_adapter = self.holds_weights = False
        self._prefix = ""
        present = paths.rank_folders(self.path)
        self.first_folder = present[0]
        self.args = self._file(present[0]).get("args")
        if self.args is None:
            raise UserError(f"{self.path} holds no args, so its model shape is unknown")
        vocab_size = side_files.vocab_size(self.side_folder)
        self.family, self.shape, self.layout = read_metadata(self.args, vocab_size)
        self._ranks = self.layout.ranks(self.shape)
        if set(present) != self.layout.grid.folders():
            raise UserError(
                f"{self.path}: its args say {self.layout.describe()}, its folders are "
                f"{', '.join(present[:6])}{', …' if len(present) > 6 else ''}; the checkpoint is "
                "mixed from two or incomplete"
            )

    @property
    def common(self) -> dict[str, Any]:
        """What all rank files say alike: schedule, number of steps."""
        content = self._file(self.first_folder)
        return {name: content[name] for name in _SMALL if name in content}

    def has(self, entry: Mapping) -> bool:
        """Whether the entry is there; an optimizer has no state of what it does not train."""
        try:
            return bool(self._parts(entry))
        except UserError:
            return False

    @property
    def states(self) -> set[str]:
        """Names of the optimizer's states that are there."""
        matches = map(_STATE.match, self._file(self.first_folder))
        return {match[1] for match in matches if match}

    @property
    def holds_optimizer(self) -> bool:
        """Whether an optimizer's state lies beside the weights."""
        return bool(self.states)

    def of_state(self, state: str) -> TorchSource:
        """A source of one of the optimizer's states, which are named and divided as weights."""
        other = copy.copy(self)
        other._prefix = f"optimizer.{state}."
        return other

    def check(self) -> None:
        lines: list[str] = []
        pipeline = self.layout.pipeline
        for at in self._ranks:
            for stage in range(pipeline.pipeline_parallel):
                for chunk in range(pipeline.chunks):
                    expected = {
                        held.name: held.dims(self.shape)
                        for held in held_tensors(
                            self.family,
                            self.shape,
                            pipeline,
                            stage,
                            chunk,
                            at,
                            self.layout.grouped,
                        )
                    }
                    tensors = self._chunk(at, stage, chunk)
                    found = {name: tuple(t.shape) for name, t in tensors.items()}
                    lines += name_problems(self.layout.rank_folder(at, stage), expected, found)
        raise_problems(self.path, lines, "was it written for another layout, or by another model?")
        self._check_copies()

    def _check_copies(self) -> None:
        """The last stage's copies of the embedding table must equal the first stage's."""
        pipeline = self.layout.pipeline
        last = (pipeline.pipeline_parallel - 1, pipeline.chunks - 1)
        if last == (0, 0):
            return
        for at in self._ranks:
            embedding, end = self._chunk(at, 0, 0)[EMBEDDING], self._chunk(at, *last)
            copies = [EMBEDDING] if EMBEDDING in end else []
            copies += [OUTPUT] if self.shape.tied else []
            if not all(same_bits(embedding, end[name]) for name in copies):
                raise UserError(
                    f"{self.path}: the embeddings are tied, but the first and the last pipeline "
                    f"stage hold different tables (tensor-parallel rank {at.rank}); the run that "
                    "wrote them did not keep them equal, so neither copy can be trusted"
                )

    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        return {tensor.dtype for tensor in self._parts(entry)}

    def full(self, entry: Mapping) -> Tensor:
        return entry.split.join(self._parts(entry), entry.dims(self.shape))

    def part(self, entry: Mapping, at: TensorParallel) -> Tensor:
        mine = self._stored_at(entry)
        if at.same_layout(mine):
            return self._parts(entry)[at.rank]
        if at.size % mine.size == 0 and not entry.split.padded:
            # Each stored part is divided further: the others need not be read.
            finer = at.size // mine.size
            piece = self._parts(entry)[at.rank // finer]
            return entry.split.take(piece, replace(at, rank=at.rank % finer, size=finer))
        if mine.size % at.size == 0 and not entry.split.padded:
            coarser = mine.size // at.size
            pieces = self._parts(entry)[at.rank * coarser : (at.rank + 1) * coarser]
            return entry.split.join(pieces, part_dims(entry, self.shape, at))
        return super().part(entry, at)

    def _stored_at(self, entry: Mapping) -> TensorParallel:
        """The first rank among those that share the tensor of ``entry``."""
        at = self._ranks[0]
        return at if entry.expert is None else at.within_expert()

    def hf_rows(self, entry: Mapping) -> dict[str, Rows]:
        shape = shape_of_one_rank(entry, self.shape, self._stored_at(entry).size)
        if shape is None:
            return super().hf_rows(entry)
        by_rank = [entry.transform.inverse_rows(shape, part) for part in self._parts(entry)]
        return {
            name: [part for tensors in by_rank for part in tensors[i]]
            for i, name in enumerate(entry.hf)
        }

    def describe(self) -> str:
        return f"Megatron torch {self.layout.describe()}"

    def _parts(self, entry: Mapping) -> list[Tensor]:
        """The stored parts of an entry's tensor, in the order of the ranks that share it."""
        layer = layer_of(entry.megatron)
        pipeline = self.layout.pipeline
        if layer is not None:
            stage, chunk, local = pipeline.locate(layer)
        elif entry.megatron == EMBEDDING:
            stage, chunk, local = 0, 0, 0
        else:
            stage, chunk, local = pipeline.pipeline_parallel - 1, pipeline.chunks - 1, 0
        name = entry.megatron if layer is None else with_layer(entry.megatron, local)
        if entry.expert is None:
            holders = {at.rank: at for at in reversed(self._ranks)}
            return [self._tensor(holders[i], stage, chunk, name) for i in sorted(holders)]
        return self._expert_parts(entry, entry.expert, stage, chunk, name)

    def _expert_parts(
        self, entry: Mapping, expert: int, stage: int, chunk: int, name: str
    ) -> list[Tensor]:
        assert self.shape.experts is not None
        parts: dict[int, Tensor] = {}
        for at in self._ranks:
            assert at.experts is not None
            local = at.experts.holds(expert, self.shape.experts.num_experts)
            if local is None or at.experts.tensor_rank in parts:
                continue
            if self.layout.grouped:
                stack = self._tensor(at, stage, chunk, stacked_name(name))
                # In memory: one transposed matrix after the other.
                columns, rows = part_dims(entry, self.shape, at.within_expert())
                part = stack.view(-1, rows, columns)[local].t()
            else:
                here = name.replace(f".local_experts.{expert}.", f".local_experts.{local}.")
                part = self._tensor(at, stage, chunk, here)
            parts[at.experts.tensor_rank] = part
        return [parts[rank] for rank in sorted(parts)]

    def _tensor(self, at: TensorParallel, stage: int, chunk: int, name: str) -> Tensor:
        tensors = self._chunk(at, stage, chunk)
        if name not in tensors:
            raise UserError(f"{self.path / self.layout.rank_folder(at, stage)}: {name} is missing")
        return tensors[name]

    def _chunk(self, at: TensorParallel, stage: int, chunk: int) -> dict[str, Tensor]:
        """Weights of one model chunk of one rank under the weight map's names."""
        key = self._prefix + self.layout.pipeline.chunk_keys()[chunk]
        content = self._file(self.layout.rank_folder(at, stage))
        if key not in content:
            raise UserError(f"{self.path}: a rank file has no {key!r}; it holds {list(content)}")
        return content[key]

    def _file(self, folder: str) -> dict[str, Any]:
        with self._lock:
            if folder not in self._files:
                path = self.path / folder / paths.RANK_FILE
                content = load_file(path)
                if not isinstance(content, dict):
                    raise UserError(f"{path} holds no dictionary")
                names = [n for key in content if key.startswith("model") for n in content[key]]
                self.holds_adapter |= any(map(is_adapter, names))
                self.holds_weights |= not all(map(is_adapter, names))
                self._files[folder] = _with_canonical_names(content)
            return self._files[folder]


def _with_canonical_names(content: dict[str, Any]) -> dict[str, Any]:
    return {
        key: (
            {
                canonical_name(name): tensor
                for name, tensor in value.items()
                if is_weight(name) and not is_adapter(name)
            }
            if key.startswith(_TENSORS)
            else value
        )
        for key, value in content.items()
        if key in _SMALL or key.startswith(_TENSORS)
    }
