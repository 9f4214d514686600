"""Collectives of the token dispatchers that gloo lacks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gather_rows(tensor: Tensor, sizes: Sequence[int], group: torch.distributed.ProcessGroup):
    """The tensors of all ranks, which have ``sizes`` rows, below each other.

    gloo gathers equal sizes only: every rank fills up to the largest one.
    """
    rows = max(sizes)
    padded = tensor.new_zeros((rows, *tensor.shape[1:]))
    padded[: tensor.shape[0]] = tensor
    gathered = tensor.new_empty((len(sizes) * rows, *tensor.shape[1:]))
    torch.distributed.all_gather_into_tensor(gathered, padded, group=group)
    parts = gathered.split(rows)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
