"""Counts of what became of the records, with the place of the first of each kind."""

from __future__ import annotations

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
        read: records, those that were malformed among them.
        kept: samples written.
        dropped: records and samples left out, by reason.
        noted: samples that were kept but changed, by reason.
        first: the place of the first of each reason.
    """

    limit: float = 1.0
    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    noted: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def drop(self, reason: str, place: str) -> None:
        """Count a record or sample that is left out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.first.setdefault(reason, place)

    def note(self, reason: str, place: str) -> None:
        """Count a sample that is kept but changed."""
        self.noted[reason] = self.noted.get(reason, 0) + 1
        self.first.setdefault(reason, place)

    def check(self, bad: int, at_end: bool = False) -> None:
        """Stop when too many records are left out.

        Args:
            bad: malformed records that were skipped.

        Raises:
            UserError: more than ``limit`` of those read so far (from the thousandth on).
        """
        dropped = sum(self.dropped.values()) + bad
        if dropped <= self.limit * self.read or not (at_end or self.read >= FEW):
            return
        reasons = "\n  ".join(self.lines(self.dropped))
        raise UserError(
            f"{dropped:,} of {self.read:,} records were left out, more than --max-dropped-share "
            f"{self.limit:g} allows:\n  {reasons}"
            + (f"\n  malformed: {bad:,}" if bad else "")
            + "\nMend the data or the handler's --map-keys, or allow more."
        )

    def lines(self, counts: dict[str, int]) -> list[str]:
        """``reason: count (first: place)``, the most frequent first."""
        most = sorted(counts, key=lambda reason: -counts[reason])
        shown = [f"{name}: {counts[name]:,} (first: {self.first[name]})" for name in most[:SHOWN]]
        rest = sum(counts[name] for name in most[SHOWN:])
        return shown + ([f"other reasons: {rest:,}"] if rest else [])
