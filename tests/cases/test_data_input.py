"""Faults of input text: DATA-01 (empty documents), DATA-03 (bad records), DATA-11 (columns)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.preprocess.command import PreprocessOptions, Summary, preprocess
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import small

GOOD = ["first text", "second text", "third text"]
EMPTY: list[str | None] = ["", "   \t\n", None, "\u00ad\u00ad"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(small.deleting())


def run(source: Path, tokenizer: Tokenizer, **options: Any) -> Summary:
    prefix = str(source.parent / "out" / source.stem)
    return preprocess(PreprocessOptions(str(source), prefix, **options), tokenizer)


def documents(summary: Summary, tokenizer: Tokenizer, key: str = "text") -> list[str]:
    """The texts of a data set, read back with megatron-core's reader."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(summary.prefixes[key]))
    return [tokenizer.decode(data[i], skip_special_tokens=True) for i in range(len(data))]


def write_lines(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def line(text: Any) -> bytes:
    return json.dumps({"text": text}).encode()


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("append_eod", [False, True])
@pytest.mark.parametrize("workers", [1, 4])
def test_data_01_empty_documents_are_left_out_and_counted(
    tmp_path: Path, tokenizer: Tokenizer, place: str, append_eod: bool, workers: int
) -> None:
    at = {"first": 0, "middle": 1, "last": 3}[place]
    texts = [*GOOD[:at], *EMPTY, *GOOD[at:]]
    source = write_lines(tmp_path / "a.jsonl", [line(text) for text in texts] + [b""])
    summary = run(source, tokenizer, append_eod=append_eod, workers=workers)
    assert documents(summary, tokenizer) == GOOD
    assert summary.documents == 3
    assert summary.skipped_empty == len(EMPTY) + 1


def test_data_01_nothing_but_empty_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = write_lines(tmp_path / "a.jsonl", [line(text) for text in EMPTY])
    with pytest.raises(UserError, match='no token under the key "text": 4 empty documents'):
        run(source, tokenizer, append_eod=True)
    assert not (tmp_path / "out").exists()


BAD = {
    "missing key": (b'{"body": "x"}', 'no key "text" (keys: "body")'),
    "number": (b'{"text": 3}', 'the value of "text" is a number'),
    "list": (b'{"text": ["x"]}', 'the value of "text" is a list'),
    "object": (b'{"text": {"x": 1}}', 'the value of "text" is an object'),
    "boolean": (b'{"text": true}', 'the value of "text" is a boolean'),
    "truncated": (b'{"text": "x', "not one JSON object"),
    "two objects": (b'{"text": "x"}{"text": "y"}', "not one JSON object"),
    "two objects and a space": (b'{"text": "x"} {"text": "y"}', "not one JSON object"),
    "a string": (b'"x"', "a string, not a JSON object"),
    "an array": (b"[1]", "a list, not a JSON object"),
    "invalid UTF-8": (b'{"text": "\xff\xfe"}', "not valid UTF-8"),
    "half a surrogate pair": (b'{"text": "\\ud800"}', "not valid Unicode"),
    "duplicate key": (b'{"text": "x", "text": "y"}', 'the key "text" stands twice'),
}


@pytest.mark.parametrize("kind", list(BAD))
@pytest.mark.parametrize("workers", [1, 4])
def test_data_03_a_bad_record_stops_with_its_line(
    tmp_path: Path, tokenizer: Tokenizer, kind: str, workers: int
) -> None:
    content, words = BAD[kind]
    source = write_lines(tmp_path / "a.jsonl", [*map(line, GOOD), b"", content, line("x")])
    with pytest.raises(UserError) as caught:
        run(source, tokenizer, workers=workers)
    assert str(caught.value).startswith(f"{source}:5: ")
    assert words in str(caught.value)
    assert "--on-error skip" in str(caught.value)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.jsonl"]


@pytest.mark.parametrize("kind", list(BAD))
def test_data_03_a_bad_record_is_skipped_and_counted(
    tmp_path: Path, tokenizer: Tokenizer, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = BAD[kind]
    lines = [line(GOOD[0]), content, line(GOOD[1]), content, line(GOOD[2])]
    source = write_lines(tmp_path / "a.jsonl", lines)
    summary = run(source, tokenizer, on_error="skip")
    assert documents(summary, tokenizer) == GOOD
    assert summary.skipped_bad == 2
    shown = capsys.readouterr().out
    assert f"{source}:2: " in shown
    assert words in shown


def test_data_03_byte_order_mark_and_windows_lines_are_no_fault(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(map(line, GOOD)))
    assert documents(run(source, tokenizer), tokenizer) == GOOD


def test_data_03_a_bad_record_deep_in_a_large_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    draw = random.Random(0)
    lines = [line("x" * draw.randrange(200, 2000)) for _ in range(6000)]
    lines[5000] = b'{"text": 1}'
    source = write_lines(tmp_path / "a.jsonl", lines)
    with pytest.raises(UserError, match=":5001: "):
        run(source, tokenizer)
    # By then output had been written; nothing of it is left.
    assert not (tmp_path / "out").exists()
    assert run(source, tokenizer, on_error="skip").documents == 5999


def parquet(path: Path) -> Path:
    """All kinds of columns, in two row groups."""
    rows = len(GOOD) + 1
    struct = pa.array([{"body": text, "n": 1} for text in GOOD] + [None])
    table = pa.table(
        {
            "number": pa.array(range(rows)),
            "plain": pa.array([*GOOD, None]),
            "large": pa.array([*GOOD, None], pa.large_string()),
            "words": pa.array([["a"]] * rows),
            "outer": struct,
            "coded": pa.array([*GOOD, None]).dictionary_encode(),
        }
    )
    pq.write_table(table, path, row_group_size=2)
    return path


@pytest.mark.parametrize("column", ["plain", "large", "outer.body", "coded"])
def test_data_11_a_parquet_column_by_name_or_path(
    tmp_path: Path, tokenizer: Tokenizer, column: str
) -> None:
    summary = run(parquet(tmp_path / "a.parquet"), tokenizer, json_keys=(column,))
    assert documents(summary, tokenizer, column) == GOOD
    assert summary.skipped_empty == 1


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("words", "is of type list<"),
        ("outer", "is of type struct<.*Address a text inside it as outer.inner"),
        ("outer.n", "is of type int64"),
        ("outer.none", 'no column "outer.none"'),
        ("number", "is of type int64"),
        ("text", r'no column "text"\. Its columns: number \(int64\), plain \(string\)'),
    ],
)
def test_data_11_other_columns_are_refused_with_their_type(
    tmp_path: Path, tokenizer: Tokenizer, column: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(parquet(tmp_path / "a.parquet"), tokenizer, json_keys=(column,))


def test_data_11_files_whose_columns_differ_in_order_and_number(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1], "text": [GOOD[0]]}), folder / "a.parquet")
    pq.write_table(pa.table({"text": [GOOD[1]], "more": [0.5], "id": ["x"]}), folder / "b.parquet")
    lines = [b'{"text": "third text", "id": null}', b'{"id": [1], "text": "x", "extra": {}}']
    write_lines(folder / "c.jsonl", lines)
    summary = run(folder, tokenizer)
    assert documents(summary, tokenizer) == [*GOOD, "x"]


def test_data_11_row_groups_are_streamed(tmp_path: Path) -> None:
    """One row group of many: the reader holds a batch, not the column."""
    from mindspeed_llm.data.readers import BadRecords, read_batches

    texts = [f"{i:06d} " * 100 for i in range(20_000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False)
    before = pa.total_allocated_bytes()
    peak = 0
    for batch in read_batches([path], ("text",), BadRecords(), 1 << 18):
        assert len(batch.positions) < 2000
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < path.stat().st_size / 3
