"""How a full Megatron tensor lies over the tensor-parallel ranks: the second step of a mapping.

``take`` cuts one rank's part out of the full tensor, ``join`` puts the parts together again.
The full form is free of padding, so it is the same for every layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.models.shape import ModelShape, padded_query_groups


@dataclass(frozen=True)
class ExpertParallel:
    """A position among the ranks that share the routed experts.

    Attributes:
        rank, size: which of ``size`` equal runs of neighbouring experts is here.
        tensor_rank, tensor_size: which part of each of them is here.
    """

    rank: int
    size: int
    tensor_rank: int
    tensor_size: int

    def holds(self, expert: int, num_experts: int) -> int | None:
        """Index of ``expert`` among the experts here; None if it is elsewhere."""
        here = num_experts // self.size
        return expert - self.rank * here if expert // here == self.rank else None


@dataclass(frozen=True)
class TensorParallel:
    """A position in a tensor-parallel layout, and what the layout rounds up.

    Attributes:
        padded_vocab_size: rows of the embedding table over all ranks.
        query_groups, padded_query_groups: key/value heads of the model, and with those added so
            that they divide (:func:`mindspeed_llm.models.shape.padded_query_groups`).
        experts: where this rank stands for the routed experts; None: it has its part of each.
    """

    rank: int
    size: int
    padded_vocab_size: int
    query_groups: int
    padded_query_groups: int
    experts: ExpertParallel | None = None

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        rank: int,
        size: int,
        padded_vocab_size: int,
        experts: ExpertParallel | None = None,
    ) -> TensorParallel:
        """The position of ``rank`` among ``size`` ranks that share a model of this shape."""
        groups = shape.num_query_groups
        padded = padded_query_groups(shape, size)
        return cls(rank, size, padded_vocab_size, groups, padded, experts)

    def within_expert(self) -> TensorParallel:
        """The position among the ranks that share one routed expert."""
        if self.experts is None:
            return self
        return replace(self, rank=self.experts.tensor_rank, size=self.experts.tensor_size)

    def same_layout(self, other: TensorParallel) -> bool:
        """Whether what ranks share is cut in the same way at both positions."""
        return replace(self, rank=0, experts=None) == replace(other, rank=0, experts=None)


@dataclass(frozen=True)
class Cut:
    """A range along one dimension of a full tensor."""

    dim: int
    start: int
    length: int


class Split(ABC):
    """How one tensor is distributed over tensor-parallel ranks.

    ``padded`` tells whether a layout may add zeros, so that parts of different layouts differ by
    more than where the cuts are.
    """

    padded = False

    @abstractmethod
    def cuts(self, dims: Sequence[int], at: TensorParallel) -> list[Cut]:
        """The ranges of a full tensor of size ``dims`` that, joined, are the part of a rank.

        All along one dimension; zeros follow if they are shorter than the part. No range: all.
        """

    @abstractmethod
    def part_dims(self, dims: Sequence[int], at: TensorParallel) -> tuple[int, ...]:
        """Size of each rank's part of a full tensor of size ``dims``."""

    @abstractmethod
    def join(self, parts: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
        """The full tensor, of size ``dims``, from all ranks' parts in rank order."""

    def take(self, full: Tensor, at: TensorParallel) -> Tensor:
        """The part of rank ``at.rank``; a view where that is possible."""
        cuts = self.cuts(full.shape, at)
        if not cuts:
            return full
        ranges = [full.narrow(cut.dim, cut.start, cut.length) for cut in cuts]
        return self.assemble(ranges, full.shape, at)

    def assemble(self, ranges: Sequence[Tensor], dims: Sequence[int], at: TensorParallel) -> Tensor:
        """A rank's part from what its :meth:`cuts` select of a tensor of size ``dims``."""
        size = self.part_dims(dims, at)
        if len(ranges) == 1 and tuple(ranges[0].shape) == size:
            return ranges[0]
        dim = self.cuts(dims, at)[0].dim
        length = sum(part.shape[dim] for part in ranges)
        zeros = ranges[0].new_zeros((*size[:dim], size[dim] - length, *size[dim + 1 :]))
        return torch.cat([*ranges, zeros], dim=dim)


class Replicated(Split):
    """Every rank holds the whole tensor; joining checks that the copies are equal."""

    def cuts(self, dims: Sequence[int], at: TensorParallel) -> list[Cut]:
        return []

    def part_dims(self, dims: Sequence[int], at: TensorParallel) -> tuple[int, ...]:
        return tuple(dims)

    def join(self, parts: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
        for rank, part in enumerate(parts[1:], start=1):
            if not same_bits(part, parts[0]):
                raise UserError(
                    f"the copies of tensor-parallel ranks 0 and {rank} differ, but this tensor is "
                    "replicated: the checkpoint was written by a faulty run or mixed from two"
                )
        return parts[0]


@dataclass(frozen=True)
class Along(Split):
    """Equal chunks along ``dim``: 0 for column-parallel layers, 1 for row-parallel ones."""

    dim: int

    def cuts(self, dims: Sequence[int], at: TensorParallel) -> list[Cut]:
        length = _share(dims[self.dim], at)
        return [Cut(self.dim, at.rank * length, length)]

    def part_dims(self, dims: Sequence[int], at: TensorParallel) -> tuple[int, ...]:
        return _divided(dims, self.dim, dims[self.dim], at)

    def join(self, parts: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
        return _joined(parts, self.dim)


class GatedColumn(Split):
    """Gate and up halves are each cut along the rows; a rank holds its gate rows, then its up."""

    def cuts(self, dims: Sequence[int], at: TensorParallel) -> list[Cut]:
        if at.size == 1:
            return []
        half = dims[0] // 2
        length = _share(half, at)
        return [Cut(0, start + at.rank * length, length) for start in (0, half)]

    def part_dims(self, dims: Sequence[int], at: TensorParallel) -> tuple[int, ...]:
        return _divided(dims, 0, dims[0], at)

    def join(self, parts: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        halves = [part.chunk(2, dim=0) for part in parts]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves], dim=0)


class VocabRows(Split):
    """Rows of the embedding table: zero rows are added up to the padded size, then cut evenly."""

    padded = True

    def cuts(self, dims: Sequence[int], at: TensorParallel) -> list[Cut]:
        return [_padded_cut(dims, 0, at.padded_vocab_size, at)]

    def part_dims(self, dims: Sequence[int], at: TensorParallel) -> tuple[int, ...]:
        return _divided(dims, 0, at.padded_vocab_size, at)

    def join(self, parts: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
        return _joined(parts, 0).narrow(0, 0, dims[0])


@dataclass(frozen=True)
class Heads(Split):
    """Attention heads along ``dim``, group by group; zero heads are added where they do not divide.

    A head whose projections are zero gives zero, and its gradients are zero, so it changes
    neither the model nor its training.
    """

    dim: int
    padded = True

    def cuts(self, dims: Sequence[int], at: TensorParallel) -> list[Cut]:
        return [_padded_cut(dims, self.dim, self._padded_length(dims[self.dim], at), at)]

    def _padded_length(self, length: int, at: TensorParallel) -> int:
        return length // at.query_groups * at.padded_query_groups

    def part_dims(self, dims: Sequence[int], at: TensorParallel) -> tuple[int, ...]:
        return _divided(dims, self.dim, self._padded_length(dims[self.dim], at), at)

    def join(self, parts: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
        return _joined(parts, self.dim).narrow(self.dim, 0, dims[self.dim])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _share(length: int, at: TensorParallel) -> int:
    share, remainder = divmod(length, at.size)
    if remainder:
        raise UserError(
            f"a dimension of {length} does not divide over tensor-parallel size {at.size}; choose "
            "a size that divides it"
        )
    return share


def _divided(
    dims: Sequence[int], dim: int, padded_length: int, at: TensorParallel
) -> tuple[int, ...]:
    return (*dims[:dim], padded_length // at.size, *dims[dim + 1 :])


def _padded_cut(dims: Sequence[int], dim: int, padded_length: int, at: TensorParallel) -> Cut:
    """What this rank has of a tensor to which zeros are added along ``dim``."""
    share = padded_length // at.size
    start = min(at.rank * share, dims[dim])
    return Cut(dim, start, min(share, dims[dim] - start))


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=dim)


REPLICATED = Replicated()
COLUMN = Along(0)
ROW = Along(1)
GATED_COLUMN = GatedColumn()
VOCAB_ROWS = VocabRows()
HEAD_ROWS = Heads(0)
HEAD_COLUMNS = Heads(1)
