"""Pure, invertible format changes between Hugging Face and Megatron, on full tensors.

A transform turns the tensors of one weight-map entry into Megatron's single tensor
(``forward``) and back (``inverse``); ``inverse(forward(x)) == x`` bit by bit. They know nothing
of parallel layouts: that is the second, independent step in ``splits.py``. All work on
``torch.device("meta")`` tensors too, which is how expected shapes are derived.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mindspeed_llm.models.shape import ModelShape


class Transform(Protocol):
    """A format change of one weight-map entry."""

    def forward(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Tensor:
        """Hugging Face tensors, in the entry's order, to Megatron's full tensor."""
        ...

    def inverse(self, shape: ModelShape, tensor: Tensor) -> tuple[Tensor, ...]:
        """Megatron's full tensor to the Hugging Face tensors, in the entry's order."""
        ...


class Rename:
    """The tensor is the same on both sides."""

    def forward(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Tensor:
        (tensor,) = tensors
        return tensor

    def inverse(self, shape: ModelShape, tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor,)


class FuseQkv:
    """Separate q, k, v projections to Megatron's grouped rows: per group its queries, k, v.

    Works on weights ``[rows, hidden]`` and biases ``[rows]`` alike.
    """

    def forward(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Tensor:
        groups = shape.num_query_groups
        grouped = [t.reshape(groups, t.shape[0] // groups, *t.shape[1:]) for t in tensors]
        return torch.cat(grouped, dim=1).reshape(-1, *tensors[0].shape[1:])

    def inverse(self, shape: ModelShape, tensor: Tensor) -> tuple[Tensor, ...]:
        head = shape.kv_channels
        queries = shape.num_attention_heads // shape.num_query_groups * head
        grouped = tensor.reshape(shape.num_query_groups, queries + 2 * head, *tensor.shape[1:])
        parts = grouped.split([queries, head, head], dim=1)
        return tuple(part.reshape(-1, *tensor.shape[1:]) for part in parts)


class FuseGateUp:
    """Separate gate and up projections to one tensor: all gate rows, then all up rows."""

    def forward(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Tensor:
        return torch.cat(tensors, dim=0)

    def inverse(self, shape: ModelShape, tensor: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.chunk(2, dim=0))


RENAME = Rename()
FUSE_QKV = FuseQkv()
FUSE_GATE_UP = FuseGateUp()
