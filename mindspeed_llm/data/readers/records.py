"""What a reader hands on: batches of columns with their places, and the policy for bad records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError

Column = list[Any]


@dataclass(frozen=True)
class Fields:
    """Which keys (columns) of a record to read.

    Attributes:
        names: the keys; for nested ones a dotted path.
        optional: those that a record, or a whole file, may lack.
        text: whether each value must be a text or null; else it may be of any kind, and no key
            may stand twice in any object of the record.
        flag: what names the keys, for messages.
    """

    names: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    text: bool = True
    flag: str = "--json-keys"


@dataclass(frozen=True)
class Batch:
    """Consecutive records of one file.

    Attributes:
        path: the file.
        columns: for each wanted key one list with a value per record; None stands for a null
            value, an optional key that is not there, or a blank line.
        positions: the number of each record in the file, from 1: its line, or its row in a
            columnar file or JSON array element's first line.
        consumed: bytes of the (possibly compressed) input that this batch used up.
        sources, places: of records mixed from several data sets: which one each is from, and
            where it stands.
    """

    path: Path
    columns: dict[str, Column]
    positions: Sequence[int]
    consumed: int = 0
    sources: Sequence[int] = ()
    places: Sequence[str] = ()

    def place(self, index: int) -> str:
        """Where the record at ``index`` stands: ``file:line`` or ``file:row``."""
        return self.places[index] if self.places else f"{self.path}:{self.positions[index]}"


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
    # Readers and handlers reject in threads of their own.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def reject(self, place: str, reason: str) -> None:
        """Report the record at ``place`` (``file:line``).

        Raises:
            UserError: unless bad records are skipped.
        """
        place = f"{place}: {reason}"
        if not self.skip:
            raise UserError(
                f"{place}.\nMend the record, or leave out such records with --on-error skip."
            )
        with self._lock:
            self.count += 1
            self.first = self.first or place


class Builder:
    """Collects accepted records of one file until they fill a batch."""

    def __init__(self, path: Path, fields: Fields, batch_bytes: int) -> None:
        self.path = path
        self.fields = fields
        self.batch_bytes = batch_bytes
        self._start()

    def _start(self) -> None:
        self.columns: dict[str, Column] = {key: [] for key in self.fields.names}
        self.positions: list[int] = []
        self.size = 0

    def add(self, position: int, values: Sequence[Any], size: int | None = None) -> None:
        """Add the record at ``position``: one value per key, in the order of the keys.

        Args:
            size: bytes of the record, where its values are not all texts.
        """
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        if size is None:
            size = sum(len(value) if value else 1 for value in values)
        self.size += size
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


def values_of(record: dict[str, Any], fields: Fields) -> tuple[list[Any], str]:
    """Take the wanted values out of a record; also what is wrong (empty if nothing is)."""
    values: list[Any] = []
    for key in fields.names:
        try:
            value = getter_of(key)(record)
        except (KeyError, TypeError, IndexError):
            if key not in fields.optional:
                known = ", ".join(f'"{name}"' for name in list(record)[:8]) or "none"
                return [], f'no key "{key}" (keys: {known}); name the right one with {fields.flag}'
            value = None
        fault = ""
        if fields.text:
            value, fault = checked_text(value, key)
        if fault:
            return [], fault
        values.append(value)
    return values, ""


def getter_of(key: str) -> Callable[[Any], Any]:
    """A function that takes the value under ``key`` (or its dotted path) out of an object.

    It raises KeyError where there is none, TypeError where the path meets something else.
    """
    if "." not in key:
        return itemgetter(key)
    steps = key.split(".")

    def get(record: Any) -> Any:
        if key in record:
            return record[key]
        for step in steps:
            record = record[step]
        return record

    return get


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
