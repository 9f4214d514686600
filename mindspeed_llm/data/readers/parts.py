"""A part of an input: a run of whole files and pieces of files, so that work can be shared out.

``n`` parts together hold every record once, and one after the other they are in the input's order.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindspeed_llm.data.readers.files import COMPRESSIONS, format_of

BLOCK = 1 << 20


@dataclass(frozen=True)
class Part:
    """A file, or the piece of it from ``start`` up to ``stop``.

    Attributes:
        start, stop: lines that begin in these bytes of a text file, or these rows of a columnar
            one; ``stop`` None: to the end.
    """

    path: Path
    start: int = 0
    stop: int | None = None

    @property
    def size(self) -> int:
        """Bytes on disk, about."""
        size = self.path.stat().st_size
        if self.start == 0 and self.stop is None:
            return size
        whole = rows_of(self.path) if format_of(self.path) == "parquet" else size
        stop = whole if self.stop is None else self.stop
        return size * (stop - self.start) // max(1, whole)


def whole(files: Iterable[Path]) -> list[Part]:
    """Each file as one part."""
    return [Part(path) for path in files]


def share_out(files: Sequence[Path], count: int) -> list[list[Part]]:
    """Divide ``files`` into ``count`` shares of about as many bytes, some of them maybe empty.

    Plain .jsonl and .txt files are cut between lines, parquet files between rows; a file of
    another kind goes as a whole to the share in which it begins.
    """
    sizes = [path.stat().st_size for path in files]
    total = max(1, sum(sizes))
    shares: list[list[Part]] = [[] for _ in range(count)]
    begin = 0
    for path, size in zip(files, sizes, strict=True):
        first = min(begin * count // total, count - 1)
        if not divisible(path) or not size:
            shares[first].append(Part(path))
        else:
            cuts = [max(0, k * total // count - begin) for k in range(first, count + 1)]
            for number, (start, stop) in enumerate(_pieces(path, size, cuts), first):
                if start != stop:
                    shares[number].append(Part(path, start, stop))
        begin += size
    return shares


def divisible(path: Path) -> bool:
    """Whether records of a file can be found without reading those before them."""
    if path.suffix.lower() in COMPRESSIONS:
        return False
    return format_of(path) in ("jsonl", "txt", "parquet")


def _pieces(path: Path, size: int, cuts: Sequence[int]) -> Iterator[tuple[int, int | None]]:
    """Neighbouring pieces between ``cuts`` (bytes; what lies beyond the file counts as its end)."""
    rows = rows_of(path) if format_of(path) == "parquet" else 0
    ends: list[int | None] = [
        None if cut >= size else (cut * rows // size if rows else cut) for cut in cuts
    ]
    for start, stop in itertools.pairwise(ends):
        if start is None:
            return
        yield start, stop


@functools.cache
def rows_of(path: Path) -> int:
    """Rows of a parquet file; 0 if it cannot be read (its reader will say so)."""
    import pyarrow
    from pyarrow import parquet

    try:
        return int(parquet.ParquetFile(path).metadata.num_rows)
    except (pyarrow.ArrowException, OSError):
        return 0


def line_start(path: Path, offset: int) -> int:
    """Where the first line that begins at ``offset`` or after it begins."""
    if offset == 0:
        return 0
    with open(path, "rb") as file:
        file.seek(offset - 1)
        at = offset - 1
        while block := file.read(BLOCK):
            end = block.find(b"\n")
            if end >= 0:
                return at + end + 1
            at += len(block)
    return at


@functools.cache
def lines_before(path: Path, offset: int) -> int:
    """How many lines end before ``offset``."""
    count = 0
    with open(path, "rb") as file:
        while offset > 0 and (block := file.read(min(BLOCK, offset))):
            count += block.count(b"\n")
            offset -= len(block)
    return count


class LinesAfter(Sequence[int]):
    """Line numbers in a piece of a file, whose lines before it are counted at need alone."""

    def __init__(self, path: Path, offset: int, numbers: range) -> None:
        self._path, self._offset, self._numbers = path, offset, numbers

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return lines_before(self._path, self._offset) + self._numbers[index]

    def __len__(self) -> int:
        return len(self._numbers)
