"""Pack samples into rows of one length: best fit decreasing over a moving window.

Samples wait in a window of a bounded number of tokens. When it is full they are put into rows,
the longest first, each into the fullest row that has room for it; the fullest half of the rows
goes out, and the rest waits for samples that fit better. Memory is that of the window; the result
depends on the order of the samples alone.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mindspeed_llm.data.encoder import Encoded
from mindspeed_llm.data.preprocess.options import PreprocessOptions
from mindspeed_llm.data.preprocess.pipeline import Writers
from mindspeed_llm.data.templates import IGNORE
from mindspeed_llm.data.tokenizer import Tokenizer

# Rows that the window holds, and its greatest size in tokens (5 bytes each).
WINDOW_ROWS = 2048
WINDOW_TOKENS = 1 << 24
# A row this full is never worth waiting with.
FULL = 0.995
ROWS_AT_ONCE = 64


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        ids: [length] int32.
        trained: [length] bool.
    """

    ids: np.ndarray
    trained: np.ndarray


class Packer:
    """Collects samples and gives rows, each a list of samples in their order.

    Attributes:
        capacity: tokens of a row; no sample is longer.
        rows, tokens: how many went out.
    """

    def __init__(self, capacity: int, window_tokens: int | None = None) -> None:
        self.capacity = capacity
        self.window_tokens = window_tokens or max(
            min(WINDOW_ROWS * capacity, WINDOW_TOKENS), 64 * capacity
        )
        self.rows = self.tokens = 0
        self._waiting: list[Sample] = []
        self._size = 0

    def add(self, sample: Sample) -> Iterator[list[Sample]]:
        """Take a sample; give the rows that are ready."""
        if len(sample.ids) > self.capacity:
            raise ValueError(f"a sample of {len(sample.ids)} tokens for rows of {self.capacity}")
        self._waiting.append(sample)
        self._size += len(sample.ids)
        if self._size >= self.window_tokens:
            yield from self._give(all_of_them=False)

    def finish(self) -> Iterator[list[Sample]]:
        """Give what is left."""
        yield from self._give(all_of_them=True)

    @property
    def efficiency(self) -> float:
        """Share of the rows' tokens that belong to samples."""
        return self.tokens / max(1, self.rows * self.capacity)

    def _give(self, all_of_them: bool) -> Iterator[list[Sample]]:
        rows = best_fit([len(sample.ids) for sample in self._waiting], self.capacity)
        fill = [sum(len(self._waiting[i].ids) for i in row) for row in rows]
        if all_of_them:
            going = set(range(len(rows)))
        else:
            fullest = sorted(range(len(rows)), key=lambda row: -fill[row])
            half = (len(rows) + 1) // 2
            going = {
                row
                for place, row in enumerate(fullest)
                if place < half or fill[row] >= FULL * self.capacity
            }
        # Rows leave in the order of their first sample.
        for number in sorted(going, key=lambda row: rows[row][0]):
            self.rows += 1
            self.tokens += fill[number]
            yield [self._waiting[i] for i in rows[number]]
        staying = sorted(i for row in set(range(len(rows))) - going for i in rows[row])
        self._waiting = [self._waiting[i] for i in staying]
        self._size = sum(len(sample.ids) for sample in self._waiting)


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best fit decreasing: the numbers of the items in each row, ascending.

    Items of one length keep their order, so the result is the same everywhere.
    """
    rows: list[list[int]] = []
    # Free tokens of each open row with its number, sorted.
    free: list[tuple[int, int]] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[item]
        place = bisect.bisect_left(free, (length, -1))
        if place < len(free):
            left, row = free.pop(place)
            rows[row].append(item)
        else:
            left, row = capacity, len(rows)
            rows.append([item])
        if left > length:
            bisect.insort(free, (left - length, row))
    for row_items in rows:
        row_items.sort()
    return rows


def packed_row(samples: Sequence[Sample], capacity: int, pad: int) -> dict[str, np.ndarray]:
    """Write samples into a row.

    Returns:
        ``input_ids``: the samples one after the other, then padding; ``labels``: the id where it
        is trained, else -100; ``attention_mask``: 1, 2, 3 ... for the tokens of each sample, 0 for
        padding. Each [capacity] int32.
    """
    ids = np.full(capacity, pad, dtype=np.int32)
    labels = np.full(capacity, IGNORE, dtype=np.int32)
    numbers = np.zeros(capacity, dtype=np.int32)
    at = 0
    for number, sample in enumerate(samples, 1):
        end = at + len(sample.ids)
        ids[at:end] = sample.ids
        # The first token of a sample is no target: nothing before it is its own.
        labels[at + 1 : end] = np.where(sample.trained[1:], sample.ids[1:], IGNORE)
        numbers[at:end] = number
        at = end
    return {"input_ids": ids, "attention_mask": numbers, "labels": labels}


@dataclass
class PackedRows:
    """Packs samples and writes the rows.

    Attributes:
        packer: forms rows.
        pad: the token that fills them.
        numbered: whether the attention mask numbers the samples (else it is 1 for all of them).
    """

    packer: Packer
    pad: int
    numbered: bool
    _ready: list[dict[str, np.ndarray]] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, options: PreprocessOptions, tokenizer: Tokenizer) -> PackedRows | None:
        """As the options ask; None if they do not."""
        if not options.pack:
            return None
        assert options.seq_length is not None
        pad = tokenizer.pad_token_id
        pad = tokenizer.eod if pad is None else int(pad)
        return cls(Packer(options.seq_length), pad, options.neat_pack)

    @property
    def counts(self) -> tuple[int, float]:
        """Rows so far, and how full they are."""
        return self.packer.rows, self.packer.efficiency

    def add(self, ids: np.ndarray, trained: np.ndarray, lengths: np.ndarray, out: Writers) -> None:
        """Take samples, one after the other, and write the rows that are ready."""
        end = 0
        for length in lengths.tolist():
            start, end = end, end + length
            # Copies: a view would keep its whole batch in memory while the sample waits.
            sample = Sample(ids[start:end].copy(), trained[start:end].copy())
            self._write(self.packer.add(sample), out)

    def finish(self, out: Writers) -> None:
        """Write what is left."""
        self._write(self.packer.finish(), out)
        self._flush(out)

    def _write(self, rows: Iterator[list[Sample]], out: Writers) -> None:
        for samples in rows:
            row = packed_row(samples, self.packer.capacity, self.pad)
            if not self.numbered:
                row["attention_mask"] = np.minimum(row["attention_mask"], 1)
            self._ready.append(row)
            if len(self._ready) == ROWS_AT_ONCE:
                self._flush(out)

    def _flush(self, out: Writers) -> None:
        """Write rows together: an index entry of their own each would cost memory."""
        if not self._ready:
            return
        lengths = np.full(len(self._ready), self.packer.capacity, dtype=np.int64)
        out.add(
            {
                key: Encoded(np.concatenate([row[key] for row in self._ready]), lengths)
                for key in self._ready[0]
            }
        )
        self._ready = []
