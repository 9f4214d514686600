"""Megatron to Hugging Face: the full tensors, under their original names, as safetensors."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.checkpoint.placement import EMBEDDING
from mindspeed_llm.checkpoint.planned_file import TensorSpec
from mindspeed_llm.checkpoint.safetensors_file import (
    INDEX,
    SHARD_BYTES,
    index_json,
    plan_safetensors_file,
    shard,
)
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.checkpoint.work import Work, fill
from mindspeed_llm.models.mapping import Mapping


class HfWriter:
    """Writes the weights of a Hugging Face folder.

    Args:
        source: where the weights come from.
        cast: the type change.
        redundant_output: name of an output layer to store although it is tied.
        shard_bytes: largest size of one file's data.
    """

    def __init__(
        self,
        source: WeightSource,
        cast: Caster,
        redundant_output: str | None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self._source = source
        self._cast = cast
        self._extra = redundant_output
        self._specs: dict[str, TensorSpec] = {}
        for entry in source.entries():
            dtype = cast.of(entry).target(source.dtype(entry))
            for name, dims in entry.hf_shapes(source.shape).items():
                self._specs[name] = TensorSpec(dtype, dims)
            if copy := self._copy_of(entry):
                self._specs[copy] = self._specs[entry.hf[0]]
        self.shards = shard(self._specs, shard_bytes)

    def nbytes(self) -> int:
        """Bytes of tensor data that will be written."""
        return sum(spec.nbytes for spec in self._specs.values())

    def tensors(self) -> int:
        """Number of tensors that will be written."""
        return len(self._specs)

    def main_dtype(self) -> torch.dtype:
        """The type that most of the written weights have."""
        return self._cast.target(self._source.main_dtype())

    def write(self, folder: Path, work: Work) -> None:
        """Write the shards, and an index if there are several, into ``folder``.

        What ``work`` holds already stays as it is.
        """
        with ExitStack() as stack:
            files = {}
            for name, specs in self.shards.items():
                path = folder / name
                files[name] = plan_safetensors_file(path, specs, work.held(path))
                stack.callback(files[name].close)
            where = {tensor: files[name] for name, specs in self.shards.items() for tensor in specs}

            def move(entry: Mapping) -> int:
                copy = self._copy_of(entry)
                names = [*entry.hf, copy] if copy else entry.hf
                if all(where[name].holds(name) for name in names):
                    return 0
                count = 0
                for name, rows in self._source.hf_rows(entry).items():
                    cast = self._cast.of(entry)(entry.megatron, rows)
                    for each in (name, copy) if copy else (name,):
                        if not where[each].holds(each):
                            count += where[each].write(each, cast)
                return count

            fill(move, self._source.entries(), list(files.values()), work)
        if len(self.shards) > 1:
            (folder / INDEX).write_text(index_json(self.shards))

    def _copy_of(self, entry: Mapping) -> str | None:
        """Name of the redundant output layer, if ``entry`` is the table it repeats."""
        return self._extra if entry.megatron == EMBEDDING else None
