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
    """Keys and values of one pipeline stage's layers, ``[batch, groups, slots, head size]`` each.

    Slots are allocated in blocks and grow as needed.
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
        empty = torch.empty(batch, groups, 0, head_size, dtype=dtype, device=device)
        self.keys = [empty] * layers
        self.values = [empty] * layers
        self.slots = 0

    def reserve(self, slots: int, at_most: int) -> None:
        """Make room for ``slots`` slots, and for some more up to ``at_most``."""
        if slots <= self.slots:
            return
        # Doubling keeps the copies of a long answer few.
        wanted = max(slots, 2 * self.slots)
        self.slots = max(slots, min(at_most, -(-wanted // BLOCK) * BLOCK))
        self.keys = [self._grown(t) for t in self.keys]
        self.values = [self._grown(t) for t in self.values]

    def keep(self, rows: Tensor) -> None:
        """Drop all rows of the batch but these."""
        self.keys = [t.index_select(0, rows) for t in self.keys]
        self.values = [t.index_select(0, rows) for t in self.values]

    def _grown(self, old: Tensor) -> Tensor:
        batch, groups, used, head = old.shape
        new = old.new_empty(batch, groups, self.slots, head)
        new[:, :, :used] = old
        # Slots past a row's position are masked, but 0 x NaN would still be NaN.
        new[:, :, used:] = 0
        return new


class RotaryTable:
    """Cosines and sines of every position so far needed, ``[positions, rotary size]``.

    The sine's first half is negated, so that rotating is ``x * cos + swap_halves(x) * sin``.
    """

    def __init__(self, inverse_frequencies: Tensor, dtype: torch.dtype) -> None:
        self._frequencies = inverse_frequencies.float()
        self._dtype = dtype
        self._cos = self._sin = inverse_frequencies.new_empty(0, 0)

    def at(self, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine ``[*positions.shape, 1, 1, rotary size]``.

        Args:
            longest: a bound of the positions, known on the host.
        """
        if longest >= len(self._cos):
            self._grow(-(-(longest + 1) // BLOCK) * BLOCK)
        cos, sin = self._cos[positions], self._sin[positions]
        return cos[..., None, None, :], sin[..., None, None, :]

    def _grow(self, length: int) -> None:
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
