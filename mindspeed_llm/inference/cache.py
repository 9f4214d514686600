"""Keys and values of earlier tokens, and the rotary table of their positions.

A token's slot is its position in its own prompt: prompts of a batch are padded on the right, a
row's next token overwrites its first pad slot, and slots beyond a row's position are masked. So
positions count from each prompt's first real token on every step, whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 256


class KeyValueCache:
    """Keys and values of a model chunk's layers; slots are allocated in blocks, as needed.

    Attributes:
        pairs: per layer ``[2, batch, groups, slots, head size]``, keys then values.
        slots: how many there are.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        groups: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        empty = torch.empty(2, batch, groups, 0, head_size, dtype=dtype, device=device)
        self.pairs = [empty] * layers
        self.slots = 0

    def reserve(self, slots: int, at_most: int) -> None:
        """Make room for ``slots`` slots, and for some more up to ``at_most``."""
        if slots <= self.slots:
            return
        # Doubling keeps the copies of a long answer few.
        wanted = max(slots, 2 * self.slots)
        self.slots = max(slots, min(at_most, -(-wanted // BLOCK) * BLOCK))
        self.pairs = [self._grown(pair) for pair in self.pairs]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows of the batch but these."""
        self.pairs = [pair.index_select(1, rows) for pair in self.pairs]

    def _grown(self, old: Tensor) -> Tensor:
        used = old.shape[3]
        new = old.new_empty(*old.shape[:3], self.slots, old.shape[4])
        new[:, :, :, :used] = old
        # Slots past a row's position are masked, but 0 x NaN would still be NaN.
        new[:, :, :, used:] = 0
        return new


class RotaryTable:
    """Cosines and sines of every position so far needed, ``[positions, rotary size]``.

    The sine's first half is negated, so that rotating is ``x * cos + swap_halves(x) * sin``.
    """

    def __init__(self, inverse_frequencies: Tensor, dtype: torch.dtype) -> None:
        self._frequencies = inverse_frequencies.float()
        self._dtype = dtype
        self._cos = self._sin = inverse_frequencies.new_empty(0, 0)

    def matrix(self, position: int, size: int) -> Tensor:
        """``[size, size]`` by which a head (a row) at a position is multiplied to rotate it."""
        self._reach(position)
        rotary = self._cos.shape[-1]
        turn = torch.eye(size, dtype=self._cos.dtype, device=self._cos.device)
        turn[:rotary, :rotary] = self._cos[position].diag()
        turn[:rotary, :rotary] += self._sin[position].diag().roll(rotary // 2, dims=0)
        return turn

    def at(self, positions: Tensor, longest: int, heads: int) -> tuple[Tensor, Tensor]:
        """Factors of a group's queries, key and value ``[b, s, 1, heads + 2, rotary size]``.

        The value's are cosine 1 and sine 0.

        Args:
            positions: ``[b, s]``.
            longest: the largest of them.
            heads: queries of a group.
        """
        self._reach(longest)
        size = (*positions.shape, 1, heads + 2, self._cos.shape[-1])
        cos, sin = self._cos.new_ones(size), self._cos.new_zeros(size)
        cos[..., :-1, :] = self._cos[positions][..., None, None, :]
        sin[..., :-1, :] = self._sin[positions][..., None, None, :]
        return cos, sin

    def _reach(self, position: int) -> None:
        """Extend the table to a position."""
        if position < len(self._cos):
            return
        length = -(-(position + 1) // BLOCK) * BLOCK
        positions = torch.arange(length, dtype=torch.float32, device=self._frequencies.device)
        angles = torch.outer(positions, self._frequencies)
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), dim=-1).to(self._dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).to(self._dtype)


@dataclass(frozen=True)
class Step:
    """What one call of the model works on: the prompts of a batch, or one new token of each.

    Attributes:
        lengths: tokens of each row once this step is done, on the host.
        width: tokens per row in this step: the longest prompt, or 1.
        device: of the model.
    """

    lengths: tuple[int, ...]
    width: int
    device: torch.device

    @property
    def prefill(self) -> bool:
        """Whether the rows start here."""
        return self.width == self.longest

    @property
    def longest(self) -> int:
        """Slots in use after this step."""
        return max(self.lengths)

    @property
    def even(self) -> bool:
        """Whether all rows have the same length."""
        return min(self.lengths) == self.longest

    def last(self) -> Tensor:
        """Position of each row's last token, ``[batch]``."""
        return torch.tensor(self.lengths, device=self.device) - 1
