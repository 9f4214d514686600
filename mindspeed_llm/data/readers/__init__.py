"""Readers: records with their places out of jsonl, json, parquet, arrow, csv and txt files.

Every reader streams: it holds a few megabytes of its file, whatever the file's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mindspeed_llm.data.readers.columns import read_arrow, read_parquet
from mindspeed_llm.data.readers.files import find_inputs, format_of
from mindspeed_llm.data.readers.json_array import read_json
from mindspeed_llm.data.readers.jsonl import read_jsonl
from mindspeed_llm.data.readers.parts import Part, share_out, whole
from mindspeed_llm.data.readers.records import BadRecords, Batch, Fields
from mindspeed_llm.data.readers.text import read_csv, read_txt

__all__ = [
    "BATCH_BYTES",
    "BadRecords",
    "Batch",
    "Fields",
    "Part",
    "find_inputs",
    "format_of",
    "read_batches",
    "share_out",
    "whole",
]

# Large enough that the cost of a batch is nothing, small enough that eight in flight are too.
BATCH_BYTES = 4 << 20

READERS: dict[str, Callable[[Part, Fields, BadRecords, int], Iterator[Batch]]] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "csv": read_csv,
    "txt": read_txt,
}


def read_batches(
    files: Sequence[Path | Part],
    wanted: Fields | Sequence[str],
    bad: BadRecords,
    batch_bytes: int | None = None,
) -> Iterator[Batch]:
    """Yield the records of ``files`` in order, in batches of about ``batch_bytes`` (4 MiB).

    Args:
        files: whole or in part, of the formats that :func:`find_inputs` knows.
        wanted: the columns to read; names alone stand for texts that every record has.
        bad: what to do with a record that cannot be used.

    Raises:
        UserError: an unreadable file, a missing column, or a bad record that is not skipped.
    """
    fields = wanted if isinstance(wanted, Fields) else Fields(tuple(wanted))
    for file in files:
        part = file if isinstance(file, Part) else Part(file)
        reader = READERS[str(format_of(part.path))]
        yield from reader(part, fields, bad, batch_bytes or BATCH_BYTES)
