"""Samples to batches: shift, pad, and say which tokens belong together.

A batch holds ``tokens``, ``labels`` (of the next token) and ``position_ids``, int64 ``[b, s]``,
``loss_mask``, float32 ``[b, s]``, and where rows hold several samples ``segments``, int32
``[b, s]``: the number of each token's sample, 0 for padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mindspeed_llm.data.storage.parts import IGNORE

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """A row as it is stored.

    Attributes:
        tokens: ``[length]``.
        labels: ``[length]``: the token itself where it is trained, else -100.
        segments: ``[length]``, the number of each token's sample; None: all are of one.
    """

    tokens: np.ndarray
    labels: np.ndarray
    segments: np.ndarray | None = None

    def cut(self, length: int) -> Sample:
        """Its first ``length`` tokens."""
        segments = None if self.segments is None else self.segments[:length]
        return Sample(self.tokens[:length], self.labels[:length], segments)


@dataclass(frozen=True)
class Collator:
    """Rows of samples to a batch.

    Attributes:
        seq_length: the greatest length of a row.
        multiple_of: None: all rows have ``seq_length``; else that of the longest row, rounded up.
        packed: rows hold samples that do not see each other.
        reset_positions: and whose positions start at 0 each.
    """

    seq_length: int
    multiple_of: int | None = None
    packed: bool = False
    reset_positions: bool = True

    def __call__(self, samples: Sequence[Sample | tuple[Sample, Sample]]) -> dict[str, Tensor]:
        """A batch; of pairs first the chosen answers, then the rejected ones."""
        import torch

        pairs = [sample for sample in samples if isinstance(sample, tuple)]
        rows = [sample for sample in samples if isinstance(sample, Sample)]
        rows += [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]
        shape = len(rows), self._length(rows)
        tokens = np.zeros(shape, dtype=np.int64)
        labels = np.full(shape, IGNORE, dtype=np.int64)
        segments = np.zeros(shape, dtype=np.int32)
        for row, sample in enumerate(rows):
            size = len(sample.tokens)
            tokens[row, :size] = sample.tokens
            labels[row, : size - 1] = sample.labels[1:]
            segments[row, :size] = 1 if sample.segments is None else sample.segments
        if self.packed:
            # The last token of a sample has no next one.
            labels[:, :-1][segments[:, 1:] != segments[:, :-1]] = IGNORE
        mask = labels != IGNORE
        labels[~mask] = 0
        batch = {
            "tokens": torch.from_numpy(tokens),
            "labels": torch.from_numpy(labels),
            "loss_mask": torch.from_numpy(mask.astype(np.float32)),
        }
        return _with_segments(batch, segments, self.packed, self.packed and self.reset_positions)

    def _length(self, rows: list[Sample]) -> int:
        if self.multiple_of is None:
            return self.seq_length
        longest = max(len(row.tokens) for row in rows)
        return min(self.seq_length, -(-longest // self.multiple_of) * self.multiple_of)


@dataclass(frozen=True)
class DocumentCollator:
    """Rows of running text to a batch in which documents do not see each other.

    Attributes:
        eod: the token that ends a document.
        reset_positions: positions start at 0 with each.
    """

    eod: int
    reset_positions: bool = True

    def __call__(self, samples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """A batch of Megatron's samples."""
        from torch.utils.data import default_collate

        batch = default_collate(list(samples))
        ended = (batch["tokens"] == self.eod).numpy()
        segments = np.ones(ended.shape, dtype=np.int32)
        segments[:, 1:] += ended[:, :-1].cumsum(axis=1, dtype=np.int32)
        return _with_segments(batch, segments, True, self.reset_positions)


def _with_segments(
    batch: dict[str, Tensor], segments: np.ndarray, packed: bool, reset: bool
) -> dict[str, Tensor]:
    import torch

    rows, length = segments.shape
    if reset:
        positions = torch.from_numpy(positions_of(segments))
    else:
        positions = torch.arange(length).expand(rows, length)
    batch["position_ids"] = positions
    if packed:
        batch["segments"] = torch.from_numpy(segments)
    return batch


def positions_of(segments: np.ndarray) -> np.ndarray:
    """Positions ``[b, s]`` that start at 0 wherever the number of the sample changes."""
    index = np.arange(segments.shape[1])
    starts = np.ones(segments.shape, dtype=bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)
