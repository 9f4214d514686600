"""A .json file: an array of objects, streamed; or, as many such files are, JSON lines."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.data.readers.files import InputFile
from mindspeed_llm.data.readers.jsonl import duplicate_keys, fault_inside, read_jsonl
from mindspeed_llm.data.readers.parts import Part
from mindspeed_llm.data.readers.records import (
    BadRecords,
    Batch,
    Builder,
    Fields,
    json_kind,
    values_of,
)

SPACES = " \t\r\n"


def read_json(part: Part, fields: Fields, bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield the wanted values of each object of the file, in order.

    Raises:
        UserError: broken syntax, also when bad records are skipped: after it nobody can tell
            where the next record starts.
    """
    with InputFile(part.path) as file:
        text = JsonText(part.path, file, batch_bytes)
        if text.peek() != "[":
            yield from read_jsonl(part, fields, bad, batch_bytes)
            return
        builder = Builder(part.path, fields, batch_bytes)
        before = 0
        for position, record, source in text.elements():
            fault = fault_of(record, source, fields)
            values, fault = ([], fault) if fault else values_of(record, fields)
            if fault:
                bad.reject(f"{part.path}:{position}", fault)
                continue
            builder.add(position, values, None if fields.text else len(source))
            if builder.full:
                consumed, before = file.position - before, file.position
                yield builder.take(consumed)
        yield builder.take(file.position - before)


def fault_of(record: Any, source: str, fields: Fields) -> str:
    """What makes an array element no proper record; empty if nothing does."""
    if not isinstance(record, dict):
        return f"the array holds {json_kind(record)}, not an object"
    if not fields.text:
        return fault_inside(record, source.encode("utf-8", "surrogatepass"))
    for key in fields.names:
        name = key.split(".")[-1]
        if source.count(f'"{name}"') > 1 and name in duplicate_keys(source):
            return f'the key "{name}" stands twice in one object'
    return ""


class JsonText:
    """A window over a JSON text that grows only until the next array element is complete."""

    def __init__(self, path: Path, file: InputFile, chunk_bytes: int) -> None:
        self.path = path
        self.file = file
        self.chunk_bytes = chunk_bytes
        self.window = ""
        self.at = 0
        self.line = 1
        self.ended = False
        # utf-8-sig drops a byte-order mark.
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode

    def _grow(self) -> bool:
        """Read on, dropping what has been used; False at the end of the file."""
        if self.ended:
            return False
        # Doubling keeps the work linear for an element of any length.
        chunk = self.file.read(max(self.chunk_bytes, len(self.window) - self.at))
        self.ended = not chunk
        try:
            added = self._decode(chunk, final=self.ended)
        except UnicodeDecodeError as error:
            raise self._broken(f"not UTF-8 ({error.reason})") from error
        self.line += self.window.count("\n", 0, self.at)
        self.window = self.window[self.at :] + added
        self.at = 0
        return not self.ended

    def _here(self) -> int:
        """The line of the current place."""
        return self.line + self.window.count("\n", 0, self.at)

    def _broken(self, what: str) -> UserError:
        return UserError(
            f"{self.path}:{self._here()}: {what}. A .json file is an array of objects, or one "
            "object a line; broken syntax in an array cannot be skipped."
        )

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            while self.at < len(self.window) and self.window[self.at] in SPACES:
                self.at += 1
            if self.at < len(self.window):
                return self.window[self.at]
            if not self._grow():
                return ""

    def elements(self) -> Iterator[tuple[int, Any, str]]:
        """Yield (first line, value, source text) of each element of the array that starts here."""
        self.at += 1
        if self.peek() == "]":
            self.at += 1
        else:
            while True:
                if not self.peek():
                    raise self._broken("the file ends inside the array")
                line = self._here()
                value, source = self._value()
                yield line, value, source
                mark = self.peek()
                if not mark:
                    raise self._broken("the file ends inside the array")
                self.at += 1
                if mark == "]":
                    break
                if mark != ",":
                    self.at -= 1
                    raise self._broken('expected "," or "]" after an element')
        if self.peek():
            raise self._broken("more follows after the end of the array")

    def _value(self) -> tuple[Any, str]:
        decoder = json.JSONDecoder()
        while True:
            try:
                value, end = decoder.raw_decode(self.window, self.at)
            except (json.JSONDecodeError, RecursionError) as error:
                if self._grow():
                    continue
                raise self._broken(f"broken JSON ({getattr(error, 'msg', 'too deep')})") from error
            # A number at the window's end may go on in the next chunk.
            if end < len(self.window) or not self._grow():
                source = self.window[self.at : end]
                self.at = end
                return value, source
