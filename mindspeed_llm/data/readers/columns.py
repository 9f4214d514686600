"""Parquet and Arrow files: columns by name (or dotted path), a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.data.readers.records import BadRecords, Batch, Builder

if TYPE_CHECKING:
    import pyarrow


def read_parquet(
    path: Path, keys: Sequence[str], bad: BadRecords, batch_bytes: int
) -> Iterator[Batch]:
    """Yield the texts of the columns ``keys``, these columns alone, a few rows at a time."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    with file:
        columns = [column_of(path, file.schema_arrow, key) for key in keys]
        batches = file.iter_batches(
            batch_size=_rows_per_batch(file.metadata, batch_bytes),
            columns=[".".join(steps) for steps in columns],
        )
        size = path.stat().st_size
        rows = max(1, file.metadata.num_rows)
        yield from _batches(path, batches, dict(zip(keys, columns, strict=True)), bad, size / rows)


def read_arrow(
    path: Path, keys: Sequence[str], bad: BadRecords, batch_bytes: int
) -> Iterator[Batch]:
    """Yield the texts of the columns ``keys`` of an Arrow file (either of its two forms)."""
    import pyarrow

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
    columns = {key: column_of(path, file.schema, key) for key in keys}
    yield from _batches(path, _cut(stored, batch_bytes), columns, bad, 0.0)


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
    path: Path,
    batches: Iterator[Any],
    columns: dict[str, list[str]],
    bad: BadRecords,
    bytes_per_row: float,
) -> Iterator[Batch]:
    import pyarrow

    first = 1
    try:
        for table in batches:
            texts = {key: _nested(table, steps) for key, steps in columns.items()}
            positions = range(first, first + table.num_rows)
            first += table.num_rows
            consumed = round(bytes_per_row * table.num_rows)
            try:
                plain = {key: column.to_pylist() for key, column in texts.items()}
            except UnicodeDecodeError:
                yield _row_by_row(path, texts, positions, bad, consumed)
            else:
                yield Batch(path, plain, positions, consumed)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _row_by_row(
    path: Path, texts: dict[str, Any], positions: Sequence[int], bad: BadRecords, consumed: int
) -> Batch:
    """A batch in which some strings are not valid UTF-8."""
    builder = Builder(path, list(texts), batch_bytes=0)
    for index, position in enumerate(positions):
        try:
            builder.add(position, [column[index].as_py() for column in texts.values()])
        except UnicodeDecodeError:
            bad.reject(path, position, "the row holds bytes that are not UTF-8")
    return builder.take(consumed)


def _nested(table: Any, steps: list[str]) -> Any:
    """The column at a path through structs; a null struct gives nulls."""
    import pyarrow.compute

    column = table.column(table.schema.names.index(steps[0]))
    for step in steps[1:]:
        column = pyarrow.compute.struct_field(column, step)
    return column


def column_of(path: Path, schema: pyarrow.Schema, key: str) -> list[str]:
    """Resolve ``key`` to the path of a text column.

    Raises:
        UserError: no such column, or one that holds no text; says its type and the text columns.
    """
    from pyarrow import types

    steps = [key] if key in schema.names else key.split(".")
    kind: Any = None
    fields: Any = schema
    for depth, step in enumerate(steps):
        names = [field.name for field in fields] if fields is not None else []
        if step not in names:
            raise UserError(
                f'{path}: no column "{key}". {_columns(schema)} Name one with --json-keys.'
            )
        kind = fields.field(step).type
        fields = None
        if types.is_struct(kind):
            fields = [kind.field(i) for i in range(kind.num_fields)]
            if depth + 1 < len(steps):
                fields = _Fields(fields)
    if types.is_dictionary(kind):
        kind = kind.value_type
    if not (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    ):
        inside = " Address a text inside it as outer.inner." if types.is_struct(kind) else ""
        raise UserError(
            f'{path}: the column "{key}" is of type {kind}, not text.{inside} {_columns(schema)}'
        )
    return steps


class _Fields(list):
    """A struct's fields, asked by name as a schema is."""

    def field(self, name: str) -> Any:
        return next(field for field in self if field.name == name)


def _columns(schema: pyarrow.Schema) -> str:
    """The columns of a file, for a message."""
    shown = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:12])
    return f"Its columns: {shown or 'none'}."


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{path}: cannot be read ({error}): damaged, or not of the format it is named."
    )
