"""Parquet and Arrow files: columns by name (or dotted path), a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.data.readers.parts import Part
from mindspeed_llm.data.readers.records import BadRecords, Batch, Builder, Fields

if TYPE_CHECKING:
    import pyarrow


def read_parquet(part: Part, fields: Fields, bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield the wanted columns of a parquet file, these columns alone, a few rows at a time."""
    import pyarrow
    from pyarrow import parquet

    path = part.path
    try:
        file = parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    with file:
        columns = columns_of(path, file.schema_arrow, fields)
        first, groups = _row_groups(file.metadata, part)
        batches = file.iter_batches(
            batch_size=_rows_per_batch(file.metadata, batch_bytes),
            row_groups=groups,
            columns=[".".join(steps) for steps in columns.values()],
        )
        size = path.stat().st_size / max(1, file.metadata.num_rows)
        batches = _rows_between(batches, first, part.start, part.stop)
        yield from _batches(part, batches, columns, fields, bad, size)


def _row_groups(metadata: Any, part: Part) -> tuple[int, list[int]]:
    """The row groups that hold a part's rows, and the number of rows before them."""
    before, begin, groups = 0, 0, []
    for index in range(metadata.num_row_groups):
        end = begin + metadata.row_group(index).num_rows
        if end > part.start and (part.stop is None or begin < part.stop):
            groups.append(index)
        elif not groups:
            before = end
        begin = end
    return before, groups


def _rows_between(
    batches: Iterator[Any], first: int, start: int, stop: int | None
) -> Iterator[Any]:
    """The rows from ``start`` up to ``stop`` of batches whose rows begin at number ``first``."""
    for batch in batches:
        low = max(0, start - first)
        high = batch.num_rows if stop is None else min(batch.num_rows, stop - first)
        if low < high:
            yield batch.slice(low, high - low)
        first += batch.num_rows


def read_arrow(part: Part, fields: Fields, bad: BadRecords, batch_bytes: int) -> Iterator[Batch]:
    """Yield the wanted columns of an Arrow file (either of its two forms)."""
    import pyarrow

    path = part.path
    source = pyarrow.memory_map(str(path))
    try:
        try:
            file = pyarrow.ipc.open_file(source)
            stored = (file.get_batch(index) for index in range(file.num_record_batches))
        except pyarrow.ArrowInvalid:
            source.seek(0)
            file = pyarrow.ipc.open_stream(source)
            stored = iter(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    columns = columns_of(path, file.schema, fields)
    yield from _batches(part, _cut(stored, batch_bytes), columns, fields, bad, 0.0)


def _cut(batches: Iterator[Any], batch_bytes: int) -> Iterator[Any]:
    """Cut record batches to about ``batch_bytes`` each."""
    for batch in batches:
        rows = max(1, batch.num_rows * batch_bytes // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _rows_per_batch(metadata: Any, batch_bytes: int) -> int:
    """Rows that hold about ``batch_bytes``, by the sizes the file states."""
    total = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    average = max(1, total // max(1, metadata.num_rows))
    return max(1, min(65536, batch_bytes // average))


def _batches(
    part: Part,
    batches: Iterator[Any],
    columns: dict[str, list[str]],
    fields: Fields,
    bad: BadRecords,
    bytes_per_row: float,
) -> Iterator[Batch]:
    import pyarrow

    first = part.start + 1
    try:
        for table in batches:
            values = {key: _nested(table, steps) for key, steps in columns.items()}
            positions = range(first, first + table.num_rows)
            first += table.num_rows
            consumed = round(bytes_per_row * table.num_rows)
            missing = [None] * table.num_rows
            try:
                plain = {key: column.to_pylist() for key, column in values.items()}
            except UnicodeDecodeError:
                yield _row_by_row(part.path, values, positions, fields, bad, consumed)
            else:
                plain = {key: plain.get(key, missing) for key in fields.names}
                yield Batch(part.path, plain, positions, consumed)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(part.path, error) from error


def _row_by_row(
    path: Path,
    values: dict[str, Any],
    positions: Sequence[int],
    fields: Fields,
    bad: BadRecords,
    consumed: int,
) -> Batch:
    """A batch in which some strings are not valid UTF-8."""
    builder = Builder(path, fields, batch_bytes=0)
    for index, position in enumerate(positions):
        try:
            row = {key: column[index].as_py() for key, column in values.items()}
        except UnicodeDecodeError:
            bad.reject(f"{path}:{position}", "the row holds bytes that are not UTF-8")
        else:
            builder.add(position, [row.get(key) for key in fields.names], 1)
    return builder.take(consumed)


def _nested(table: Any, steps: list[str]) -> Any:
    """The column at a path through structs; a null struct gives nulls."""
    import pyarrow.compute

    column = table.column(table.schema.names.index(steps[0]))
    for step in steps[1:]:
        column = pyarrow.compute.struct_field(column, step)
    return column


def columns_of(path: Path, schema: pyarrow.Schema, fields: Fields) -> dict[str, list[str]]:
    """The path of each wanted column; optional ones that are not there are left out.

    Raises:
        UserError: no such column, or one that holds no text where texts are wanted; says its type
            and the columns that there are.
    """
    found = {}
    for key in fields.names:
        steps, kind = _find(schema, key)
        if kind is None and key in fields.optional:
            continue
        if kind is None:
            raise UserError(
                f'{path}: no column "{key}". {_columns(schema)} Name one with {fields.flag}.'
            )
        if fields.text and not _holds_text(kind):
            from pyarrow import types

            inside = " Address a text inside it as outer.inner." if types.is_struct(kind) else ""
            raise UserError(
                f'{path}: the column "{key}" is of type {kind}, not text.{inside} '
                f"{_columns(schema)}"
            )
        found[key] = steps
    return found


def _find(schema: pyarrow.Schema, key: str) -> tuple[list[str], Any]:
    """The steps of a dotted path through structs, and the type at its end (None: not there)."""
    from pyarrow import types

    steps = [key] if key in schema.names else key.split(".")
    kind: Any = None
    inside: dict[str, Any] = {field.name: field.type for field in schema}
    for step in steps:
        kind = inside.get(step)
        if kind is None:
            break
        is_struct = types.is_struct(kind)
        inside = (
            {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
            if is_struct
            else {}
        )
    return steps, kind


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def _columns(schema: pyarrow.Schema) -> str:
    """The columns of a file, for a message."""
    shown = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:12])
    return f"Its columns: {shown or 'none'}."


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: cannot be read ({error}): damaged, or not of the format it is named."
    )
