"""JSON lines: one object a line, parsed a block of lines at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

from mindspeed_llm.data.readers.files import InputFile
from mindspeed_llm.data.readers.records import BadRecords, Batch, Builder, checked_text, json_kind

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_jsonl(
    path: Path, keys: Sequence[str], bad: BadRecords, batch_bytes: int
) -> Iterator[Batch]:
    """Yield the texts under ``keys`` of a .jsonl file; a blank line is a record of nulls.

    A key with dots that is no key of the object itself is a path through nested objects.
    """
    quoted = [orjson.dumps(key.split(".")[-1]) for key in keys]
    getters = [getter_of(key) for key in keys]
    with InputFile(path) as file:
        first = 1
        before = 0
        for block in line_blocks(file, batch_bytes):
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()
            consumed, before = file.position - before, file.position
            positions = range(first, first + len(lines))
            first += len(lines)
            columns = _whole_block(block, lines, keys, quoted, getters)
            if columns is not None:
                yield Batch(path, columns, positions, consumed)
            else:
                yield _line_by_line(path, lines, positions, keys, bad, consumed)


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


def _whole_block(
    block: bytes,
    lines: list[bytes],
    keys: Sequence[str],
    quoted: Sequence[bytes],
    getters: Sequence[Callable[[Any], Any]],
) -> dict[str, list[str | None]] | None:
    """The columns of a block in which nothing is wrong, else None.

    Inside a JSON string a quote is escaped, so ``"text"`` in the bytes is a key or a whole
    value; as often as there are lines means once in each line, hence no duplicate key.
    """
    if any(block.count(name) != len(lines) for name in quoted):
        return None
    try:
        records = [orjson.loads(line) for line in lines]
        columns = {
            key: [get(record) for record in records] for key, get in zip(keys, getters, strict=True)
        }
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    for column in columns.values():
        if set(map(type, column)) - {str}:
            return None
    return columns


def _line_by_line(
    path: Path,
    lines: list[bytes],
    positions: Sequence[int],
    keys: Sequence[str],
    bad: BadRecords,
    consumed: int,
) -> Batch:
    """The columns of a block in which some lines may be blank or wrong."""
    builder = Builder(path, keys, batch_bytes=0)
    for position, line in zip(positions, lines, strict=True):
        if not line.strip():
            builder.add(position, [None] * len(keys))
            continue
        record, fault = parse_object(line, keys)
        texts, fault = ([], fault) if fault else texts_of(record, keys)
        if fault:
            bad.reject(path, position, fault)
        else:
            builder.add(position, texts)
    return builder.take(consumed)


def parse_object(line: bytes, keys: Sequence[str]) -> tuple[Any, str]:
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
    for key in keys:
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


def texts_of(record: dict[str, Any], keys: Sequence[str]) -> tuple[list[str | None], str]:
    """Take the texts under ``keys`` out of a record; also what is wrong (empty if nothing is)."""
    texts: list[str | None] = []
    for key in keys:
        try:
            value = getter_of(key)(record)
        except (KeyError, TypeError, IndexError):
            known = ", ".join(f'"{name}"' for name in list(record)[:8]) or "none"
            return [], f'no key "{key}" (keys: {known}); name the right one with --json-keys'
        text, fault = checked_text(value, key)
        if fault:
            return [], fault
        texts.append(text)
    return texts, ""
