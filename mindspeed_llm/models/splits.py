"""How a full Megatron tensor lies over the tensor-parallel ranks: the second step of a mapping.

``take`` cuts one rank's part out of the full tensor, ``join`` puts the parts together again.
The full form is free of padding, so it is the same for every layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mindspeed.errors import UserError


@dataclass(frozen=True)
class TensorParallel:
    """A position in a tensor-parallel layout.

    ``padded_vocab_size`` is the number of rows of the embedding table over all ranks.
    """

    rank: int
    size: int
    padded_vocab_size: int


class Split(Protocol):
    """How one tensor is distributed over tensor-parallel ranks."""

    def take(self, full: Tensor, at: TensorParallel) -> Tensor:
        """The part of rank ``at.rank``; a view where that is possible."""
        ...

    def join(self, parts: Sequence[Tensor], vocab_size: int) -> Tensor:
        """The full tensor from all ranks' parts, in rank order."""
        ...


class Replicated:
    """Every rank holds the whole tensor; joining checks that the copies are equal."""

    def take(self, full: Tensor, at: TensorParallel) -> Tensor:
        return full

    def join(self, parts: Sequence[Tensor], vocab_size: int) -> Tensor:
        for rank, part in enumerate(parts[1:], start=1):
            if part.shape != parts[0].shape or not torch.equal(part, parts[0]):
                raise UserError(
                    f"the copies of tensor-parallel ranks 0 and {rank} differ, but this tensor is "
                    "replicated: the checkpoint was written by a faulty run or mixed from two"
                )
        return parts[0]


@dataclass(frozen=True)
class Along:
    """Equal chunks along ``dim``: 0 for column-parallel layers, 1 for row-parallel ones."""

    dim: int

    def take(self, full: Tensor, at: TensorParallel) -> Tensor:
        return _chunk(full, self.dim, at)

    def join(self, parts: Sequence[Tensor], vocab_size: int) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=self.dim)


class GatedColumn:
    """Gate and up halves are each cut along the rows; a rank holds its gate rows, then its up."""

    def take(self, full: Tensor, at: TensorParallel) -> Tensor:
        if at.size == 1:
            return full
        return torch.cat([_chunk(half, 0, at) for half in full.chunk(2, dim=0)], dim=0)

    def join(self, parts: Sequence[Tensor], vocab_size: int) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        halves = [part.chunk(2, dim=0) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves], dim=0)


class VocabRows:
    """Rows of the embedding table: zero rows are added up to the padded size, then cut evenly."""

    def take(self, full: Tensor, at: TensorParallel) -> Tensor:
        rows = at.padded_vocab_size // at.size
        start = at.rank * rows
        part = full[start : start + rows]
        if part.shape[0] == rows:
            return part
        padding = full.new_zeros((rows - part.shape[0], *full.shape[1:]))
        return torch.cat([part, padding], dim=0)

    def join(self, parts: Sequence[Tensor], vocab_size: int) -> Tensor:
        full = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=0)
        return full[:vocab_size]


def _chunk(full: Tensor, dim: int, at: TensorParallel) -> Tensor:
    length, remainder = divmod(full.shape[dim], at.size)
    if remainder:
        raise UserError(
            f"a dimension of {full.shape[dim]} does not divide over tensor-parallel size "
            f"{at.size}; choose a size that divides it"
        )
    return full.narrow(dim, at.rank * length, length)


REPLICATED = Replicated()
COLUMN = Along(0)
ROW = Along(1)
GATED_COLUMN = GatedColumn()
VOCAB_ROWS = VocabRows()
