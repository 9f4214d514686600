"""Weights in a Megatron checkpoint of format ``torch``: one file a model-parallel rank."""

from __future__ import annotations

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
    chunk_entries,
    is_weight,
    part_dims,
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


class TorchSource(WeightSource):
    """Rank files, mapped when first needed."""

    kind = "torch"

    def __init__(
        self, root: Path, iteration: paths.Iteration, hf_cfg_dir: Path | str | None = None
    ) -> None:
        self.path = paths.iteration_folder(root, iteration)
        self.iteration = None if iteration == paths.RELEASE else iteration
        self.side_folder = side_files.find(root, hf_cfg_dir)
        self._lock = threading.Lock()
        self._files: dict[tuple[int, int], dict[str, Any]] = {}
        self._grid = paths.rank_grid(self.path)
        self.args = self._file(0, 0).get("args")
        if self.args is None:
            raise UserError(f"{self.path} holds no args, so its model shape is unknown")
        vocab_size = side_files.vocab_size(self.side_folder)
        self.family, self.shape, self.layout = read_metadata(self.args, vocab_size)
        named = (self.layout.tensor_parallel, self.layout.pipeline.pipeline_parallel)
        if named != self._grid:
            raise UserError(
                f"{self.path}: its args say TP{named[0]} PP{named[1]}, its folders are for "
                f"TP{self._grid[0]} PP{self._grid[1]}; the checkpoint is mixed from two or "
                "incomplete"
            )

    def check(self) -> None:
        lines: list[str] = []
        pipeline = self.layout.pipeline
        for tensor_rank in range(self._grid[0]):
            at = self.layout.at(self.shape, tensor_rank)
            for stage in range(pipeline.pipeline_parallel):
                for chunk in range(pipeline.chunks):
                    entries = chunk_entries(self.family, self.shape, pipeline, stage, chunk)
                    expected = {name: part_dims(e, self.shape, at) for name, e in entries}
                    tensors = self._chunk(tensor_rank, stage, chunk)
                    found = {name: tuple(t.shape) for name, t in tensors.items()}
                    where = paths.rank_folder(tensor_rank, stage, pipeline.pipeline_parallel)
                    lines += name_problems(where, expected, found)
        raise_problems(self.path, lines, "was it written for another layout, or by another model?")
        self._check_tied_copy()

    def _check_tied_copy(self) -> None:
        pipeline = self.layout.pipeline
        if not self.shape.tied or pipeline.pipeline_parallel == 1:
            return
        last = (pipeline.pipeline_parallel - 1, pipeline.chunks - 1)
        for rank in range(self._grid[0]):
            embedding = self._chunk(rank, 0, 0)[EMBEDDING]
            if not same_bits(embedding, self._chunk(rank, *last)[OUTPUT]):
                raise UserError(
                    f"{self.path}: the embeddings are tied, but the first and the last pipeline "
                    f"stage hold different tables (tensor-parallel rank {rank}); the run that "
                    "wrote them did not keep them equal, so neither copy can be trusted"
                )

    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        return {tensor.dtype for tensor in self._parts(entry)}

    def full(self, entry: Mapping) -> Tensor:
        return entry.split.join(self._parts(entry), entry.dims(self.shape))

    def part(self, entry: Mapping, at: TensorParallel) -> Tensor:
        mine = self.layout.tensor_parallel
        if at.same_layout(self.layout.at(self.shape, 0)):
            return self._parts(entry)[at.rank]
        if at.size % mine == 0 and not entry.split.padded:
            # Each stored part is divided further: the others need not be read.
            finer = at.size // mine
            piece = self._parts(entry)[at.rank // finer]
            return entry.split.take(piece, replace(at, rank=at.rank % finer, size=finer))
        return super().part(entry, at)

    def hf_rows(self, entry: Mapping) -> dict[str, Rows]:
        shape = shape_of_one_rank(entry, self.shape, self.layout.tensor_parallel)
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
        """The stored tensors of all tensor-parallel ranks."""
        layer = layer_of(entry.megatron)
        pipeline = self.layout.pipeline
        name = entry.megatron
        if layer is not None:
            stage, chunk, local = pipeline.locate(layer)
            name = with_layer(name, local)
        elif name == EMBEDDING:
            stage, chunk = 0, 0
        else:
            stage, chunk = pipeline.pipeline_parallel - 1, pipeline.chunks - 1
        parts = []
        for rank in range(self._grid[0]):
            tensors = self._chunk(rank, stage, chunk)
            if name not in tensors:
                where = paths.rank_folder(rank, stage, pipeline.pipeline_parallel)
                raise UserError(f"{self.path / where}: {name} is missing")
            parts.append(tensors[name])
        return parts

    def _chunk(self, tensor_rank: int, stage: int, chunk: int) -> dict[str, Tensor]:
        """Weights of one model chunk of one rank under the weight map's names."""
        key = self.layout.pipeline.chunk_keys()[chunk]
        content = self._file(tensor_rank, stage)
        if key not in content:
            raise UserError(f"{self.path}: a rank file has no {key!r}; it holds {list(content)}")
        return content[key]

    def _file(self, tensor_rank: int, stage: int) -> dict[str, Any]:
        with self._lock:
            if (tensor_rank, stage) not in self._files:
                folder = paths.rank_folder(tensor_rank, stage, self._grid[1])
                content = load_file(self.path / folder / paths.RANK_FILE)
                if not isinstance(content, dict):
                    raise UserError(f"{self.path / folder / paths.RANK_FILE} holds no dictionary")
                self._files[tensor_rank, stage] = _with_canonical_names(content)
            return self._files[tensor_rank, stage]


def _with_canonical_names(content: dict[str, Any]) -> dict[str, Any]:
    return {
        key: (
            {canonical_name(name): t for name, t in value.items() if is_weight(name)}
            if key.startswith("model")
            else value
        )
        for key, value in content.items()
        if key in ("args", "iteration", "checkpoint_version") or key.startswith("model")
    }
