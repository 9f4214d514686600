"""JSON lines: one object a line, parsed a block of lines at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from mindspeed_llm.data.readers.files import InputFile
from mindspeed_llm.data.readers.parts import LinesAfter, Part, line_start
from mindspeed_llm.data.readers.records import (
    BadRecords,
    Batch,
    Builder,
    Fields,
    getter_of,
    json_kind,
    values_of,
)

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_jsonl(part: Part, fields: Fields, bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield the wanted values of a .jsonl file; a blank line is a record of nulls.

    A key with dots that is no key of the object itself is a path through nested objects.
    """
    quoted = [orjson.dumps(key.split(".")[-1]) for key in fields.names] if fields.text else []
    getters = {key: _getter(key, fields) for key in fields.names}
    for block, lines, positions, consumed in numbered_blocks(part, batch_bytes):
        columns = _whole_block(block, lines, fields, quoted, getters)
        if columns is not None:
            yield Batch(part.path, columns, positions, consumed)
        else:
            yield _line_by_line(part.path, lines, positions, fields, bad, consumed)


def numbered_blocks(
    part: Part, block_bytes: int
) -> Iterator[tuple[bytes, list[bytes], Sequence[int], int]]:
    """Yield runs of lines: as a whole, each, their numbers, and the bytes read for them."""
    start = line_start(part.path, part.start)
    stop = None if part.stop is None else line_start(part.path, part.stop)
    with InputFile(part.path, start, stop) as file:
        first = 1
        before = 0
        for block in line_blocks(file, block_bytes):
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()
            consumed, before = file.position - before, file.position
            numbers = range(first, first + len(lines))
            first += len(lines)
            positions = LinesAfter(part.path, start, numbers) if start else numbers
            yield block, lines, positions, consumed


def line_blocks(file: InputFile, block_bytes: int) -> Iterator[bytes]:
    """Yield runs of whole lines of about ``block_bytes``, without the byte-order mark."""
    parts: list[bytes] = []
    at_start = True
    while chunk := file.read(block_bytes):
        if at_start:
            chunk = chunk.removeprefix(BYTE_ORDER_MARK)
            at_start = False
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join((*parts, chunk[:end]))
            parts = [chunk[end:]]
        else:
            parts.append(chunk)
    if rest := b"".join(parts):
        yield rest


def _getter(key: str, fields: Fields) -> Callable[[Any], Any]:
    """As :func:`getter_of`; gives None for an optional key that is not there."""
    get = getter_of(key)
    if key not in fields.optional:
        return get
    if "." not in key:
        return lambda record: record.get(key)

    def or_none(record: Any) -> Any:
        try:
            return get(record)
        except (KeyError, TypeError, IndexError):
            return None

    return or_none


def _whole_block(
    block: bytes,
    lines: list[bytes],
    fields: Fields,
    quoted: Sequence[bytes],
    getters: dict[str, Callable[[Any], Any]],
) -> dict[str, list[Any]] | None:
    """The columns of a block in which nothing is wrong, else None.

    Inside a JSON string a quote is escaped, so ``"text"`` in the bytes is a key or a whole
    value; as often as there are lines means once in each line, hence no duplicate key.
    """
    if any(block.count(name) != len(lines) for name in quoted):
        return None
    try:
        records = [orjson.loads(line) for line in lines]
        columns = {key: [get(record) for record in records] for key, get in getters.items()}
        if not fields.text:
            once = quotes(orjson.dumps(records)) == quotes(block)
            return columns if once and set(map(type, records)) <= {dict} else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    for column in columns.values():
        if set(map(type, column)) - {str}:
            return None
    return columns


def quotes(document: bytes) -> int:
    """Quotes that begin or end a string of a JSON document, about.

    A document and what is written of it after parsing have as many, unless a key stood twice in
    one object (the parser keeps the last). Rare escapes differ too; then one looks closer.
    """
    return document.count(b'"') - document.count(b'\\"')


def fault_inside(record: Any, source: bytes) -> str:
    """A key that stands twice in an object of a record, or text that is not valid Unicode."""
    try:
        written = orjson.dumps(record)
    except (TypeError, ValueError) as error:
        return f"the record holds what is not valid Unicode or JSON ({error})"
    if quotes(written) != quotes(source):
        twice = duplicate_keys(source)
        if twice:
            return f'the key "{min(twice)}" stands twice in one object'
    return ""


def _line_by_line(
    path: Path,
    lines: list[bytes],
    positions: Sequence[int],
    fields: Fields,
    bad: BadRecords,
    consumed: int,
) -> Batch:
    """The columns of a block in which some lines may be blank or wrong."""
    builder = Builder(path, fields, batch_bytes=0)
    for position, line in zip(positions, lines, strict=True):
        if not line.strip():
            builder.add(position, [None] * len(fields.names))
            continue
        record, fault = parse_object(line, fields)
        values, fault = ([], fault) if fault else values_of(record, fields)
        if fault:
            bad.reject(f"{path}:{position}", fault)
        else:
            builder.add(position, values, len(line))
    return builder.take(consumed)


def parse_object(line: bytes, fields: Fields) -> tuple[Any, str]:
    """Parse one JSON object; return it and what is wrong (empty if nothing is)."""
    try:
        record = orjson.loads(line)
    except ValueError as error:
        try:
            # Python's own dumps writes NaN and Infinity, which only Python's own loads takes.
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None, f"not one JSON object ({_without_line(error)})"
    if not isinstance(record, dict):
        return None, f"{json_kind(record)}, not a JSON object"
    if not fields.text:
        return record, fault_inside(record, line)
    for key in fields.names:
        name = key.split(".")[-1]
        if line.count(orjson.dumps(name)) > 1 and name in duplicate_keys(line):
            return None, f'the key "{name}" stands twice in one object'
    return record, ""


def _without_line(error: ValueError) -> str:
    """The parser's words; its "line 1" would be taken for the file's."""
    return str(error).split(": line 1 ")[0]


def duplicate_keys(document: bytes | str) -> set[str]:
    """The keys that stand twice in one and the same object of ``document``."""
    twice: set[str] = set()

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) < len(pairs):
            names = [name for name, _ in pairs]
            twice.update(name for name in seen if names.count(name) > 1)
        return seen

    json.loads(document, object_pairs_hook=note)
    return twice
