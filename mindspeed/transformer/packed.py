"""Rows that hold several sequences: where each begins, and the position of each token in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

PADDING_BLOCK = 64
"""Padding is cut into sequences of this many tokens: it must cost no more than its share."""


@dataclass
class PackedRows(PackedSeqParams):
    """The sequences in the rows of a micro-batch, under the name that Megatron hands through.

    Unlike Megatron's own packed format, "thd", rows stay rows: activations are ``[s, b, ...]``.
    Megatron's code itself reads the lengths below for the number of rotary angles and, with
    multi-token prediction, for rolling a row one token ahead; both are those of whole rows.

    Attributes:
        lengths: of the sequences of the first row, then of the second, ...; padding is cut into
            sequences of its own.
        positions: ``[b, s]``, of each token for the rotary embedding.
        ends: bool ``[b, s]``, the last token of each sequence.
        reach: ``[b, s]``, one more than the last position of the sequence that each token is in.
    """

    lengths: tuple[int, ...] = ()
    positions: Tensor = field(default_factory=lambda: torch.empty(0))
    ends: Tensor = field(default_factory=lambda: torch.empty(0))
    reach: Tensor = field(default_factory=lambda: torch.empty(0))
    _angles: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, segments: Tensor, positions: Tensor, device: torch.device | str = "cpu"
    ) -> PackedRows:
        """From the number of each token's sequence.

        Args:
            segments: int ``[b, s]`` on the host; a change of the number starts a sequence, and 0
                is padding.
            positions: ``[b, s]``, on the host.
            device: where the tensors go.
        """
        numbers = segments.numpy()
        rows, length = numbers.shape
        starts = np.ones((rows, length), dtype=bool)
        starts[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        begins = np.flatnonzero(starts)
        lengths: list[int] = []
        for begin, size in zip(begins, np.diff(begins, append=rows * length), strict=True):
            padding = numbers.flat[begin] == 0
            lengths += _blocks(int(size)) if padding else [int(size)]
        sizes = np.array(lengths)
        last = sizes.cumsum() - 1
        ends = np.zeros(rows * length, dtype=bool)
        ends[last] = True
        reach = (positions.numpy().flat[last] + 1).repeat(sizes)
        return cls(
            qkv_format="sbhd",
            cu_seqlens_q=torch.tensor([0, length], dtype=torch.int32),
            cu_seqlens_kv=torch.tensor([0, length], dtype=torch.int32),
            max_seqlen_q=int(positions.max()) + 1,
            max_seqlen_kv=int(positions.max()) + 1,
            lengths=tuple(lengths),
            positions=positions.to(device, non_blocking=True),
            ends=torch.from_numpy(ends).view(rows, length).to(device, non_blocking=True),
            reach=torch.from_numpy(reach).view(rows, length).to(device, non_blocking=True),
        )

    def angles(self, table: Callable[[int], Tensor], limit: int | None = None) -> Tensor:
        """Rotary angles of each token, ``[s, b, 1, r]``; kept, because every layer has the same.

        Args:
            table: angles ``[positions, 1, 1, r]`` for sequences of a length.
            limit: longer sequences have other angles (LongRoPE).
        """
        if self._angles is None:
            found = self._take(table(self.max_seqlen_q))
            if limit is not None and self.max_seqlen_q > limit:
                short = self._take(table(limit), limit - 1)
                found = torch.where(self.reach.t()[..., None, None] > limit, found, short)
            self._angles = found
        return self._angles

    def _take(self, table: Tensor, last: int | None = None) -> Tensor:
        positions = self.positions if last is None else self.positions.clamp(max=last)
        return table[:, 0, 0][positions.t()].unsqueeze(2)


def _blocks(size: int) -> list[int]:
    whole, rest = divmod(size, PADDING_BLOCK)
    return [PADDING_BLOCK] * whole + [rest] * (rest > 0)


def lengths_of(params: PackedSeqParams, tokens: int) -> list[int]:
    """Lengths of the sequences of Megatron's own format, "thd", with ``tokens`` in all."""
    found = params.cu_seqlens_q_padded
    ends = (params.cu_seqlens_q if found is None else found).tolist()
    return [*np.diff(ends).tolist(), *_blocks(tokens - ends[-1])]
