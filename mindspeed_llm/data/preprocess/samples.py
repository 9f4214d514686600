"""Encoded conversations as samples: end tokens, greatest length, nothing without a lesson."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindspeed_llm.data.templates import EncodedChats

OVER_LONG = "longer than --seq-length"
NOTHING_TO_LEARN = "nothing to learn from"
CUT_TURNS = "cut after a whole answer"
CUT_ANSWERS = "cut inside an answer"


@dataclass(frozen=True)
class Rows:
    """Samples that are kept.

    Attributes:
        ids, trained: [total], one sample after the other.
        lengths: [samples].
        kept: [samples] which of the encoded samples each is.
    """

    ids: np.ndarray
    trained: np.ndarray
    lengths: np.ndarray
    kept: np.ndarray


@dataclass(frozen=True)
class Sizing:
    """What becomes of encoded samples.

    Attributes:
        eod: the token to end each sample with; None for none.
        seq_length: the greatest length; None for any.
        cut: cut longer samples (else they are left out).
        group: samples that stay or go together (2 for a pair).
        learn: whether a sample must have something to learn.
    """

    eod: int | None = None
    seq_length: int | None = None
    cut: bool = False
    group: int = 1
    learn: bool = True

    def apply(self, encoded: EncodedChats, count: Callable[[str, int], None]) -> Rows:
        """Give each sample its end, length and place, or leave it out.

        A sample that is too long is cut after its last whole answer that fits; if not even the
        first one does, inside that answer, which then has no token that ends it. Half a prompt is
        never kept: without a trained token a sample is left out.

        Args:
            encoded: of ``group`` x n samples.
            count: told the reason and the number of each sample that is cut or left out.
        """
        if self.eod is not None:
            encoded = with_eod(encoded, self.eod)
        lengths = encoded.lengths.copy()
        starts = np.cumsum(lengths) - lengths
        out = np.zeros(lengths.size, dtype=bool)
        cuts: dict[int, str] = {}
        if self.seq_length is not None:
            for row in map(int, np.flatnonzero(lengths > self.seq_length)):
                if self.cut:
                    lengths[row], cuts[row] = self._cut(encoded, row, int(starts[row]))
                else:
                    out[row] = True
        self._count_groups(out, OVER_LONG, count)
        if self.learn:
            # The first token is no target.
            seen = np.concatenate([[0], np.cumsum(encoded.trained)])
            first = np.minimum(starts + 1, starts + lengths)
            barren = (seen[starts + lengths] - seen[first] == 0) & ~self._whole_groups(out)
            self._count_groups(barren, NOTHING_TO_LEARN, count)
            out |= barren
        out = self._whole_groups(out)
        for row, why in cuts.items():
            if not out[row]:
                count(why, row)
        keep = np.repeat(~out, encoded.lengths)
        if cuts:
            place = np.arange(encoded.ids.size) - np.repeat(starts, encoded.lengths)
            keep &= place < np.repeat(lengths, encoded.lengths)
        if keep.all():
            return Rows(encoded.ids, encoded.trained, lengths, np.arange(lengths.size))
        return Rows(encoded.ids[keep], encoded.trained[keep], lengths[~out], np.flatnonzero(~out))

    def _cut(self, encoded: EncodedChats, row: int, start: int) -> tuple[int, str]:
        """The length after cutting, and which way it was cut."""
        assert self.seq_length is not None
        first = int(encoded.span_counts[:row].sum())
        ends = encoded.spans[first : first + int(encoded.span_counts[row]), 1] - start
        whole = ends[ends <= self.seq_length]
        return (int(whole[-1]), CUT_TURNS) if whole.size else (self.seq_length, CUT_ANSWERS)

    def _whole_groups(self, flags: np.ndarray) -> np.ndarray:
        """Set for all of a group what is set for one of it."""
        if self.group == 1:
            return flags
        return np.repeat(flags.reshape(-1, self.group).any(axis=1), self.group)

    def _count_groups(self, flags: np.ndarray, why: str, count: Callable[[str, int], None]) -> None:
        for group in np.flatnonzero(flags.reshape(-1, self.group).any(axis=1)):
            count(why, int(group) * self.group)


def with_eod(encoded: EncodedChats, eod: int) -> EncodedChats:
    """End each sample with ``eod`` unless it does; trained if the token before it is."""
    ends = np.cumsum(encoded.lengths) - 1
    lacking = (encoded.lengths > 0) & (encoded.ids[ends] != eod)
    added = np.concatenate([[0], np.cumsum(lacking)])
    ids = np.insert(encoded.ids, ends[lacking] + 1, eod)
    trained = np.insert(encoded.trained, ends[lacking] + 1, encoded.trained[ends[lacking]])
    sample_of_span = np.repeat(np.arange(encoded.lengths.size), encoded.span_counts)
    return replace(
        encoded,
        ids=ids,
        trained=trained,
        lengths=encoded.lengths + lacking,
        spans=encoded.spans + added[sample_of_span][:, None],
    )


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays one after the other; an empty int32 one for none."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
