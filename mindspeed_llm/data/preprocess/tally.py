"""Counts of what became of the records, with the place of the first of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mindspeed.errors import UserError

# Records before which the share of those left out means nothing.
FEW = 1000
SHOWN = 12


@dataclass
class Tally:
    """What became of records.

    Attributes:
        limit: greatest share of records that may be left out.
        read: records, malformed ones among them.
        kept, trained: samples written, and their tokens that the loss is taken on.
        dropped: records and samples left out, by reason.
        noted: samples that were kept but changed, by reason.
        first: the place of the first of each reason.
        bad, first_bad: malformed records that were skipped.
        empty, first_empty: documents of plain text without a token.
    """

    limit: float = 1.0
    read: int = 0
    kept: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    noted: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    bad: int = 0
    first_bad: str = ""
    empty: int = 0
    first_empty: str = ""

    def drop(self, reason: str, place: str) -> None:
        """Count a record or sample that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.first.setdefault(reason, place)

    def note(self, reason: str, place: str) -> None:
        """Count a sample that is kept but changed."""
        self.noted[reason] = self.noted.get(reason, 0) + 1
        self.first.setdefault(reason, place)

    def check(self, at_end: bool = False) -> None:
        """Stop when too many records are left out.

        Raises:
            UserError: more than ``limit`` of those read so far (from the thousandth on).
        """
        dropped = sum(self.dropped.values()) + self.bad
        if dropped <= self.limit * self.read or not (at_end or self.read >= FEW):
            return
        reasons = "".join(f"\n  {line}" for line in self.reasons())
        raise UserError(
            f"{dropped:,} of {self.read:,} records were left out, more than --max-dropped-share "
            f"{self.limit:g} allows:{reasons}\n"
            "Mend the data or the handler's --map-keys, or allow more."
        )

    def reasons(self) -> list[str]:
        """Why records were left out, a line each."""
        bad = [f"malformed: {self.bad:,} (first: {self.first_bad})"] if self.bad else []
        return self.lines(self.dropped) + bad

    def lines(self, counts: dict[str, int]) -> list[str]:
        """``reason: count (first: place)``, the most frequent first."""
        most = sorted(counts, key=lambda reason: -counts[reason])
        shown = [f"{name}: {counts[name]:,} (first: {self.first[name]})" for name in most[:SHOWN]]
        rest = sum(counts[name] for name in most[SHOWN:])
        return shown + ([f"other reasons: {rest:,}"] if rest else [])


def added(tallies: Sequence[Tally], limit: float) -> Tally:
    """The tallies of consecutive parts as one."""
    total = Tally(limit)
    for one in tallies:
        total.read += one.read
        total.kept += one.kept
        total.trained += one.trained
        total.bad += one.bad
        total.empty += one.empty
        total.first_bad = total.first_bad or one.first_bad
        total.first_empty = total.first_empty or one.first_empty
        for mine, theirs in ((total.dropped, one.dropped), (total.noted, one.noted)):
            for reason, count in theirs.items():
                mine[reason] = mine.get(reason, 0) + count
        for reason, place in one.first.items():
            total.first.setdefault(reason, place)
    return total
