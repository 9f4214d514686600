"""CSV files (a column by its header) and plain text files (a document a line)."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.data.readers.files import InputFile
from mindspeed_llm.data.readers.jsonl import numbered_blocks
from mindspeed_llm.data.readers.parts import Part
from mindspeed_llm.data.readers.records import BadRecords, Batch, Builder, Fields, checked_text

TEXT_COLUMN = "text"


def read_txt(part: Part, fields: Fields, bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield each line of a text file as a document in the one column "text"."""
    if fields.names != (TEXT_COLUMN,):
        raise UserError(
            f'{part.path}: a .txt file has the one column "{TEXT_COLUMN}", a document a line; '
            f"{fields.flag} asks for {' '.join(fields.names)}."
        )
    for _, lines, positions, consumed in numbered_blocks(part, batch_bytes):
        builder = Builder(part.path, fields, batch_bytes)
        for index, line in enumerate(lines):
            try:
                builder.add(positions[index], [line.removesuffix(b"\r").decode("utf-8")])
            except UnicodeDecodeError as error:
                bad.reject(f"{part.path}:{positions[index]}", f"not UTF-8 ({error.reason})")
        yield builder.take(consumed)


def read_csv(part: Part, fields: Fields, bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield the wanted columns of a CSV file whose first line names its columns."""
    csv.field_size_limit(sys.maxsize)
    path = part.path
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
        wanted = [_index_of(path, header, key, fields) for key in fields.names]
        builder = Builder(path, fields, batch_bytes)
        before = 0
        while True:
            position = rows.line_num + 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                bad.reject(f"{path}:{position}", f"not a CSV record ({error})")
                continue
            if row is None:
                break
            texts, fault = _texts(row, header, wanted)
            if fault:
                bad.reject(f"{path}:{position}", fault)
                continue
            builder.add(position, texts)
            if builder.full:
                consumed, before = file.position - before, file.position
                yield builder.take(consumed)
        yield builder.take(file.position - before)


def _texts(
    row: list[str], header: list[str], wanted: Sequence[int | None]
) -> tuple[list[str | None], str]:
    """The wanted fields of a row, and what is wrong with it (empty if nothing is)."""
    if not row:
        return [None] * len(wanted), ""
    if len(row) != len(header):
        return [], f"the record has {len(row)} fields, the header {len(header)}"
    texts: list[str | None] = []
    for index in wanted:
        if index is None:
            texts.append(None)
            continue
        text, fault = checked_text(row[index], header[index])
        if fault:
            return [], fault
        texts.append(text)
    return texts, ""


def _index_of(path: Path, header: list[str], key: str, fields: Fields) -> int | None:
    found = [index for index, name in enumerate(header) if name.strip() == key]
    if len(found) == 1:
        return found[0]
    if not found and key in fields.optional:
        return None
    what = f"stands {len(found)} times in" if found else "is not in"
    raise UserError(
        f'{path}:1: the column "{key}" {what} the header line: {", ".join(header[:12]) or "empty"}.'
        f" Name a column with {fields.flag}."
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
