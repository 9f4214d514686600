"""Read Megatron's indexed data sets a few megabytes at a time, and put them one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.data.storage.indexed import IndexedWriter, IndexHeader, bin_path, check_indexed

MERGE_TOKENS = 1 << 20


def merge_indexed(prefixes: Sequence[Path], output: Path) -> IndexedWriter:
    """Write the data sets of ``prefixes``, one after the other, as one.

    Raises:
        UserError: one is damaged, or they differ in token type.
    """
    headers = [check_indexed(prefix) for prefix in prefixes]
    kinds = {header.dtype for header in headers}
    if len(kinds) > 1:
        listed = "; ".join(f"{header.prefix}: {header.dtype.name}" for header in headers)
        raise UserError(f"data sets of different token types cannot be merged ({listed}).")
    with IndexedWriter(output, kinds.pop()) as writer:
        for header in headers:
            _append(writer, header)
        writer.commit()
    return writer


def _append(writer: IndexedWriter, header: IndexHeader) -> None:
    """Add all documents of a data set, a few megabytes at a time."""
    for ids, lengths, documents in _pieces(header):
        writer.add(ids, lengths, documents)


def stored_pieces(header: IndexHeader) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (ids, lengths) of the sequences of a data set, a few megabytes at a time."""
    for ids, lengths, _ in _pieces(header):
        yield ids, lengths


def _pieces(header: IndexHeader) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield ids, lengths, and the sequences in each document."""
    lengths, marks = header.lengths, header.document_marks
    size = header.dtype.itemsize
    with open(bin_path(header.prefix), "rb") as data:
        first = 0
        while first < len(marks) - 1:
            stop = _documents_until(marks, lengths, first)
            part = np.asarray(lengths[marks[first] : marks[stop]])
            raw = data.read(int(part.sum(dtype=np.int64)) * size)
            yield np.frombuffer(raw, dtype=header.dtype), part, np.diff(marks[first : stop + 1])
            first = stop


def _documents_until(marks: np.ndarray, lengths: np.ndarray, first: int) -> int:
    """The end of a run of documents from ``first`` with about MERGE_TOKENS tokens, at least one."""
    stop = min(first + 4096, len(marks) - 1)
    part = lengths[marks[first] : marks[stop]]
    tokens = np.cumsum(part, dtype=np.int64)
    sequences = int(np.searchsorted(tokens, MERGE_TOKENS, side="right"))
    fitting = int(np.searchsorted(marks[first : stop + 1], marks[first] + sequences, "right")) - 1
    return first + max(1, fitting)
