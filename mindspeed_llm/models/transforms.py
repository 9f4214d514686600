"""Pure, invertible format changes between Hugging Face and Megatron, on full tensors.

A transform turns the tensors of one weight-map entry into Megatron's single tensor
(``forward``) and back (``inverse``); ``inverse(forward(x)) == x`` bit by bit. They know nothing
of parallel layouts: that is the second, independent step in ``splits.py``. All work on
``torch.device("meta")`` tensors too, which is how expected shapes are derived.

Each of them only puts rows into another order, so each also exists as views: lists of row ranges
that, one after the other, are the result. Writing them to a file takes no memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from mindspeed_llm.models.shape import ModelShape

Rows = list[Tensor]
"""Views that, one below the other, are a tensor."""


class Transform(ABC):
    """A format change of one weight-map entry."""

    @abstractmethod
    def forward_rows(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Rows:
        """Hugging Face tensors, in the entry's order, to the rows of Megatron's full tensor."""

    @abstractmethod
    def inverse_rows(self, shape: ModelShape, tensor: Tensor) -> tuple[Rows, ...]:
        """Megatron's full tensor to the rows of each Hugging Face tensor, in the entry's order."""

    def forward(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Tensor:
        """Hugging Face tensors, in the entry's order, to Megatron's full tensor."""
        return stack_rows(self.forward_rows(shape, tensors))

    def inverse(self, shape: ModelShape, tensor: Tensor) -> tuple[Tensor, ...]:
        """Megatron's full tensor to the Hugging Face tensors, in the entry's order."""
        return tuple(stack_rows(rows) for rows in self.inverse_rows(shape, tensor))


class Rename(Transform):
    """The tensor is the same on both sides."""

    def forward_rows(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Rows:
        return list(tensors)

    def inverse_rows(self, shape: ModelShape, tensor: Tensor) -> tuple[Rows, ...]:
        return ([tensor],)


class Shared(Transform):
    """A table that each layer of multi-token prediction has a copy of, which files may lack."""

    def forward_rows(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Rows:
        return [tensors[0]]

    def inverse_rows(self, shape: ModelShape, tensor: Tensor) -> tuple[Rows, ...]:
        return ([tensor],) * (1 + shape.mtp_num_layers)


class FuseQkv(Transform):
    """Separate q, k, v projections to Megatron's grouped rows: per group its queries, k, v.

    Works on weights ``[rows, hidden]`` and biases ``[rows]`` alike.
    """

    def forward_rows(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Rows:
        per_tensor = [tensor.chunk(shape.num_query_groups) for tensor in tensors]
        return [part for group in zip(*per_tensor, strict=True) for part in group]

    def inverse_rows(self, shape: ModelShape, tensor: Tensor) -> tuple[Rows, ...]:
        head = shape.kv_channels
        queries = shape.num_attention_heads // shape.num_query_groups * head
        parts = tensor.split([queries, head, head] * shape.num_query_groups)
        return tuple(list(parts[i::3]) for i in range(3))


class RegroupQkv(Transform):
    """One projection with all q, then all k, then all v rows, to Megatron's groups."""

    def forward_rows(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Rows:
        (fused,) = tensors
        parts = fused.split([shape.query_size, shape.kv_size, shape.kv_size])
        return FUSE_QKV.forward_rows(shape, parts)

    def inverse_rows(self, shape: ModelShape, tensor: Tensor) -> tuple[Rows, ...]:
        return ([row for rows in FUSE_QKV.inverse_rows(shape, tensor) for row in rows],)


class FuseGateUp(Transform):
    """Separate gate and up projections to one tensor: all gate rows, then all up rows."""

    def forward_rows(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Rows:
        return list(tensors)

    def inverse_rows(self, shape: ModelShape, tensor: Tensor) -> tuple[Rows, ...]:
        return tuple([half] for half in tensor.chunk(2, dim=0))


def stack_rows(rows: Sequence[Tensor]) -> Tensor:
    """The tensor whose rows these are; itself if there is only one range."""
    return rows[0] if len(rows) == 1 else torch.cat(list(rows), dim=0)


RENAME = Rename()
SHARED = Shared()
FUSE_QKV = FuseQkv()
REGROUP_QKV = RegroupQkv()
FUSE_GATE_UP = FuseGateUp()
