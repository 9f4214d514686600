"""What a run wrote, and the table that it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindspeed_llm.console import box
from mindspeed_llm.data.indexed import bin_path
from mindspeed_llm.data.manifest import Manifest
from mindspeed_llm.data.readers import BadRecords
from mindspeed_llm.data.tally import Tally


@dataclass(frozen=True)
class Summary:
    """What a run did.

    Attributes:
        prefixes: the data set of each key.
        manifests: their notes.
        skipped_empty, skipped_bad: documents without text, and malformed records, left out.
        seconds: how long it took.
        data_path: what training takes: the data sets, or the prefix that several share.
        tally: of chats: what became of the records.
    """

    prefixes: dict[str, Path]
    manifests: dict[str, Manifest]
    skipped_empty: int
    skipped_bad: int
    seconds: float
    data_path: Sequence[str] = ()
    tally: Tally = field(default_factory=Tally)

    @property
    def tokens(self) -> int:
        """Tokens written, over all keys."""
        return sum(manifest.tokens for manifest in self.manifests.values())

    @property
    def documents(self) -> int:
        """Documents written, over all keys."""
        return sum(manifest.documents for manifest in self.manifests.values())


def size_of(prefix: Path) -> int:
    """Bytes of a data set's tokens."""
    return bin_path(prefix).stat().st_size


def show(lines: Sequence[tuple[str, str]]) -> None:
    """Print the table: a name and a value a line; a value of several lines is set in."""
    width = max(len(name) for name, _ in lines)
    rows = []
    for name, value in lines:
        first, *rest = value.split("\n")
        rows.append(f"{name.ljust(width)}  {first}")
        rows += [f"{' ' * width}  {line}" for line in rest]
    box("preprocessed", rows)


def bad_line(bad: BadRecords) -> tuple[str, str]:
    """The line on malformed records."""
    return "skipped bad", f"{bad.count:,}" + (f" (first: {bad.first})" if bad.first else "")
