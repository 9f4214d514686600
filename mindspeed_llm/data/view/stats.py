"""What data look like in numbers, and what is suspicious about them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from mindspeed_llm.data.storage.parts import IGNORE, Part, Parts

ROWS_AT_ONCE = 4096
BINS = 20


@dataclass
class Answers:
    """Numbers of one kind of text (pairs have two), collected a few thousand rows at a time.

    Attributes:
        rows: tokens of each row.
        lengths, trained: of each sample: its tokens, and those that are trained.
        padding: tokens that only fill rows.
        wrong: trained tokens whose label is another id.
        last: how often an id is the last trained one of a sample.
    """

    rows: np.ndarray
    lengths: np.ndarray
    trained: np.ndarray
    padding: int
    wrong: int
    last: Counter[int] = field(default_factory=Counter)

    @property
    def tokens(self) -> int:
        """All but padding."""
        return int(self.lengths.sum())

    @property
    def empty(self) -> int:
        """Samples without a trained token."""
        return int((self.trained == 0).sum())

    @property
    def full(self) -> int:
        """Samples of which every token is trained."""
        return int((self.trained == self.lengths).sum())

    def lines(self) -> list[str]:
        """The numbers, a line each."""
        samples, rows = len(self.lengths), len(self.rows)
        share = self.trained.sum() / max(1, self.tokens)
        names = ("min", "median", "90%", "99%", "max")
        marks = np.percentile(self.lengths, [0, 50, 90, 99, 100]).astype(int)
        spread = (f"{name} {value:,}" for name, value in zip(names, marks, strict=True))
        if self.packed:
            filled = self.tokens / int(self.rows.sum())
            packing = f"{filled:.2%} of the rows is samples, {samples / rows:.1f} of them a row"
        else:
            longest = int(self.rows.max())
            padded = self.tokens / (longest * rows)
            packing = f"none; of rows of {longest:,} tokens, samples would be {padded:.1%}"
        return [
            f"rows      {rows:,}",
            f"samples   {samples:,}",
            f"tokens    {self.tokens:,}",
            f"trained   {int(self.trained.sum()):,} ({share:.1%} of the tokens)",
            f"length    {', '.join(spread)}",
            f"packing   {packing}",
        ]

    @property
    def packed(self) -> bool:
        """Whether rows hold several samples, or padding."""
        return len(self.lengths) > len(self.rows) or self.padding > 0

    def problems(self) -> list[str]:
        """What a user should look at."""
        count, found = len(self.lengths), []
        if self.empty:
            found.append(
                f"{self.empty:,} of {count:,} samples have no trained token: nothing is learnt "
                "from them (cut before the answer, or of another template?)"
            )
        if self.full:
            found.append(
                f"{self.full:,} of {count:,} samples are trained from their first token to their "
                "last: the prompt is learnt too"
            )
        if self.wrong:
            found.append(f"{self.wrong:,} labels are another id than the token they lie on")
        return found


def collect(tokens: Part, labels: Part, segments: Part | None) -> Answers:
    """Read all rows once."""
    lengths, trained, padding, wrong = [], [], 0, 0
    last: Counter[int] = Counter()
    for first in range(0, len(tokens), ROWS_AT_ONCE):
        end = min(first + ROWS_AT_ONCE, len(tokens))
        rows = tokens.lengths[first:end].astype(np.int64)
        ids, marks = tokens.span(first, end), labels.span(first, end)
        numbers = np.ones_like(ids) if segments is None else segments.span(first, end)
        is_trained = marks != IGNORE
        wrong += int((is_trained & (marks != ids)).sum())
        padding += int((numbers == 0).sum())
        starts = np.ones(len(ids), dtype=bool)
        starts[1:] = numbers[1:] != numbers[:-1]
        starts[rows.cumsum()[:-1][rows[1:] > 0]] = True
        begins = np.flatnonzero(starts)
        if not len(begins):
            continue
        kept = numbers[begins] != 0
        lengths.append(np.diff(begins, append=len(ids))[kept])
        trained.append(np.add.reduceat(is_trained.astype(np.int64), begins)[kept])
        # The place of the last trained token of each sample, -1 for none.
        places = np.maximum.reduceat(np.where(is_trained, np.arange(len(ids)), -1), begins)[kept]
        last.update(ids[places[places >= 0]].tolist())
    empty = np.zeros(0, dtype=np.int64)
    return Answers(
        rows=np.asarray(tokens.lengths),
        lengths=np.concatenate(lengths or [empty]),
        trained=np.concatenate(trained or [empty]),
        padding=padding,
        wrong=wrong,
        last=last,
    )


def collect_all(parts: Parts | Part) -> dict[str, Answers]:
    """Of instruction data and text ``{"": ...}``, of pairs ``{"chosen": ..., "rejected": ...}``."""
    if isinstance(parts, Part):
        return {"": collect(parts, parts, None)}
    if "input_ids" in parts.keys:
        p = parts.parts
        return {"": collect(p["input_ids"], p["labels"], p["attention_mask"])}
    return {
        name: collect(parts.parts[f"{name}_input_ids"], parts.parts[f"{name}_labels"], None)
        for name in ("chosen", "rejected")
    }


def histogram(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts ``[bins]`` and edges ``[bins + 1]`` of whole numbers."""
    below, top = (int(lengths.min()) - 1, int(lengths.max())) if len(lengths) else (0, 1)
    edges = np.unique(np.linspace(below, top, min(BINS, top - below) + 1).astype(np.int64))
    # An edge belongs to the numbers up to it; numpy's to those from it on.
    return np.histogram(lengths, bins=edges + 0.5)[0], edges


def bars(lengths: np.ndarray, width: int = 40) -> list[str]:
    """A histogram in text."""
    counts, edges = histogram(lengths)
    most = max(1, int(counts.max(initial=1)))
    return [
        f"{edges[i] + 1:>7,} - {edges[i + 1]:<7,} {'█' * round(width * count / most):<{width}} "
        f"{count:,}"
        for i, count in enumerate(counts)
    ]
