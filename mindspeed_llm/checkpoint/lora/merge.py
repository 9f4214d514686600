"""Weights with an adapter added: a source like any other, so it goes wherever a source goes.

Each value is computed in fp32 and rounded once to the type of the weight. A tensor-parallel
part is merged from that rank's halves of the pair, so no full tensor is built.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mindspeed_llm.checkpoint.lora.adapter import Adapter, LowRank, take_pair
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.splits import TensorParallel
from mindspeed_llm.models.transforms import Rows, stack_rows

BLOCK_BYTES = 32 << 20
"""Size of the fp32 product that exists at a time."""


class MergedSource(WeightSource):
    """The weights of ``base`` with ``adapter`` merged into them.

    Attributes:
        base, adapter: what was merged.
    """

    def __init__(self, base: WeightSource, adapter: Adapter) -> None:
        self.base = base
        self.adapter = adapter
        self.kind, self.path = base.kind, base.path
        self.family, self.shape = base.family, base.shape
        self.iteration, self.side_folder = base.iteration, base.side_folder
        if hasattr(base, "layout"):
            self.layout = base.layout

    @property
    def files(self) -> list[Path]:
        return [*self.base.files, *self.adapter.files]

    def check(self) -> None:
        self.base.check()

    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        return self.base.dtypes(entry)

    def full(self, entry: Mapping) -> Tensor:
        return stack_rows(self._merged(entry, [self.base.full(entry)], None))

    def part(self, entry: Mapping, at: TensorParallel) -> Tensor:
        return stack_rows(self.part_rows(entry, at))

    def part_rows(self, entry: Mapping, at: TensorParallel) -> Rows:
        return self._merged(entry, self.base.part_rows(entry, at), at)

    def hf_rows(self, entry: Mapping) -> dict[str, Rows]:
        rows = self.base.hf_rows(entry)
        if entry.megatron not in self.adapter.names:
            return rows
        pair = self.adapter.pair(entry)
        b = entry.to_hf(self.shape, pair.b)
        return {
            name: add(part, LowRank(pair.a, b[name], pair.scale)) for name, part in rows.items()
        }

    def describe(self) -> str:
        return f"{self.base.describe()} + LoRA"

    def _merged(self, entry: Mapping, rows: Rows, at: TensorParallel | None) -> Rows:
        if entry.megatron not in self.adapter.names:
            return rows
        pair = self.adapter.pair(entry)
        return add(rows, pair if at is None else take_pair(pair, entry, at))


def add(rows: Rows, pair: LowRank) -> Rows:
    """``rows``, one below the other, plus the product of ``pair``; new tensors of the same type."""
    start = 0
    merged = []
    for part in rows:
        out = torch.empty(part.shape, dtype=part.dtype)
        step = max(1, BLOCK_BYTES // (4 * part.shape[1]))
        for low in range(0, len(part), step):
            high = min(low + step, len(part))
            delta = pair.delta(slice(start + low, start + high))
            out[low:high] = delta.add_(part[low:high])
        merged.append(out)
        start += len(part)
    return merged
