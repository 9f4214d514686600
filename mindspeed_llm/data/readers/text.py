"""CSV files (a column by its header) and plain text files (a document a line)."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.data.readers.files import InputFile
from mindspeed_llm.data.readers.jsonl import line_blocks
from mindspeed_llm.data.readers.records import BadRecords, Batch, Builder, checked_text

TEXT_COLUMN = "text"


def read_txt(path: Path, keys: Sequence[str], bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield each line of a text file as a document in the one column "text"."""
    if list(keys) != [TEXT_COLUMN]:
        raise UserError(
            f'{path}: a .txt file has the one column "{TEXT_COLUMN}", a document a line; '
            f"--json-keys asks for {' '.join(keys)}."
        )
    with InputFile(path) as file:
        first = 1
        before = 0
        for block in line_blocks(file, batch_bytes):
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()
            builder = Builder(path, keys, batch_bytes)
            for position, line in enumerate(lines, first):
                try:
                    builder.add(position, [line.removesuffix(b"\r").decode("utf-8")])
                except UnicodeDecodeError as error:
                    bad.reject(path, position, f"not UTF-8 ({error.reason})")
            first += len(lines)
            consumed, before = file.position - before, file.position
            yield builder.take(consumed)


def read_csv(path: Path, keys: Sequence[str], bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield the columns ``keys`` of a CSV file whose first line names its columns."""
    csv.field_size_limit(sys.maxsize)
    with InputFile(path) as file:
        # surrogateescape lets a bad byte reach the check of its own record, with its line.
        lines = io.TextIOWrapper(
            io.BufferedReader(_Raw(file)),
            encoding="utf-8-sig",
            errors="surrogateescape",
            newline="",
        )
        rows = csv.reader(lines, strict=True)
        try:
            header = next(rows, [])
        except csv.Error as error:
            raise UserError(f"{path}:1: the header line is broken ({error}).") from error
        wanted = [_index_of(path, header, key) for key in keys]
        builder = Builder(path, keys, batch_bytes)
        before = 0
        while True:
            position = rows.line_num + 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                bad.reject(path, position, f"not a CSV record ({error})")
                continue
            if row is None:
                break
            texts, fault = _texts(row, header, wanted)
            if fault:
                bad.reject(path, position, fault)
                continue
            builder.add(position, texts)
            if builder.full:
                consumed, before = file.position - before, file.position
                yield builder.take(consumed)
        yield builder.take(file.position - before)


def _texts(
    row: list[str], header: list[str], wanted: Sequence[int]
) -> tuple[list[str | None], str]:
    """The wanted fields of a row, and what is wrong with it (empty if nothing is)."""
    if not row:
        return [None] * len(wanted), ""
    if len(row) != len(header):
        return [], f"the record has {len(row)} fields, the header {len(header)}"
    texts: list[str | None] = []
    for index in wanted:
        text, fault = checked_text(row[index], header[index])
        if fault:
            return [], fault
        texts.append(text)
    return texts, ""


def _index_of(path: Path, header: list[str], key: str) -> int:
    found = [index for index, name in enumerate(header) if name.strip() == key]
    if len(found) == 1:
        return found[0]
    what = f"stands {len(found)} times in" if found else "is not in"
    raise UserError(
        f'{path}:1: the column "{key}" {what} the header line: {", ".join(header[:12]) or "empty"}.'
        " Name a column with --json-keys."
    )


class _Raw(io.RawIOBase):
    """An :class:`InputFile` as a raw stream, which Python's text layer can wrap."""

    def __init__(self, file: InputFile) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
