"""What a reader hands on: batches of columns with their places, and the policy for bad records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError

Column = list[str | None]


@dataclass(frozen=True)
class Batch:
    """Consecutive records of one file.

    Attributes:
        path: the file.
        columns: for each wanted key one list with a text per record; None stands for a null
            value or a blank line, which count as empty documents.
        positions: the number of each record in the file, from 1: its line, or its row in a
            columnar file or JSON array element's first line.
        consumed: bytes of the (possibly compressed) input that this batch used up.
    """

    path: Path
    columns: dict[str, Column]
    positions: Sequence[int]
    consumed: int = 0


@dataclass
class BadRecords:
    """Stops at the first bad record, or counts them and goes on (``--on-error stop|skip``).

    Attributes:
        skip: whether to go on.
        count: bad records met so far.
        first: place and fault of the first one.
    """

    skip: bool = False
    count: int = 0
    first: str = ""

    def reject(self, path: Path, position: int, reason: str) -> None:
        """Report the record at ``path:position``.

        Raises:
            UserError: unless bad records are skipped.
        """
        place = f"{path}:{position}: {reason}"
        if not self.skip:
            raise UserError(
                f"{place}.\nMend the record, or leave out such records with --on-error skip."
            )
        self.count += 1
        self.first = self.first or place


class Builder:
    """Collects accepted records of one file until they fill a batch."""

    def __init__(self, path: Path, keys: Sequence[str], batch_bytes: int) -> None:
        self.path = path
        self.keys = keys
        self.batch_bytes = batch_bytes
        self._start()

    def _start(self) -> None:
        self.columns: dict[str, Column] = {key: [] for key in self.keys}
        self.positions: list[int] = []
        self.size = 0

    def add(self, position: int, texts: Sequence[str | None]) -> None:
        """Add the record at ``position``: one text (or None) per key, in the order of the keys."""
        for key, text in zip(self.keys, texts, strict=True):
            self.columns[key].append(text)
            self.size += len(text) if text else 1
        self.positions.append(position)

    @property
    def full(self) -> bool:
        """Whether the batch has reached its size."""
        return self.size >= self.batch_bytes

    def take(self, consumed: int = 0) -> Batch:
        """Return the batch and start a new one."""
        batch = Batch(self.path, self.columns, self.positions, consumed)
        self._start()
        return batch


def checked_text(value: Any, key: str) -> tuple[str | None, str]:
    """Return ``(value, "")`` if it is a text or null, else ``(None, what is wrong with it)``."""
    if value is None:
        return None, ""
    if not isinstance(value, str):
        return None, f'the value of "{key}" is {json_kind(value)}, not a string'
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return None, f'the value of "{key}" holds bytes or escapes that are not valid Unicode'
    return value, ""


def json_kind(value: Any) -> str:
    """The JSON name of a value's kind, with its article."""
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "a string"), (list, "a list"), (dict, "an object")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "a number"
