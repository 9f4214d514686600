"""Each format gives the same records, in order, with the place of each; faults have a place."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mindspeed.errors import UserError
from mindspeed_llm.data.readers import BadRecords, find_inputs, read_batches

TEXTS = ["one", "two\nlines", 'a "quote", a comma', "", "汉字 \U0001f600", "last"]
ROWS = [{"id": i, "text": text, "meta": {"title": f"t{i}"}} for i, text in enumerate(TEXTS)]


def write_jsonl(path: Path, ascii_only: bool = False) -> None:
    lines = [json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in ROWS]
    path.write_text("".join(lines), encoding="utf-8")


def write_csv(path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows([row["id"], row["text"]] for row in ROWS)


def write(path: Path) -> Path:
    """Write ROWS in the format that the name says."""
    if path.name.endswith(".jsonl"):
        write_jsonl(path, ascii_only=True)
    elif path.name.endswith(".jsonl.gz"):
        write_jsonl(path)
        path.write_bytes(gzip.compress(path.read_bytes()))
    elif path.name.endswith(".jsonl.zst"):
        write_jsonl(path)
        path.write_bytes(zstandard.compress(path.read_bytes()))
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(ROWS, indent=1, ensure_ascii=False), encoding="utf-8")
    elif path.name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    elif path.name.endswith(".arrow"):
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        write_csv(path)
    return path


def read(
    path: Path, keys: tuple[str, ...] = ("text",), skip: bool = False, batch_bytes: int = 20
) -> list[tuple[int, tuple[str | None, ...]]]:
    """All records as (place, texts); small batches, so that their seams are met."""
    records = []
    for batch in read_batches(find_inputs(str(path))[0], keys, BadRecords(skip), batch_bytes):
        columns = zip(*(batch.columns[key] for key in keys), strict=True)
        records += list(zip(batch.positions, columns, strict=True))
    return records


@pytest.mark.parametrize(
    "name",
    ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json", "a.parquet", "a.arrow", "a.csv"],
)
@pytest.mark.parametrize("batch_bytes", [1, 20, 1 << 20])
def test_every_format_gives_the_same_texts(tmp_path: Path, name: str, batch_bytes: int) -> None:
    records = read(write(tmp_path / name), batch_bytes=batch_bytes)
    assert [texts[0] for _, texts in records] == TEXTS


def test_places_are_lines_or_rows(tmp_path: Path) -> None:
    assert [place for place, _ in read(write(tmp_path / "a.jsonl"))] == [1, 2, 3, 4, 5, 6]
    assert [place for place, _ in read(write(tmp_path / "a.parquet"))] == [1, 2, 3, 4, 5, 6]
    # The second CSV record spans two lines; the JSON elements of indent 1 are 7 lines long.
    assert [place for place, _ in read(write(tmp_path / "a.csv"))] == [2, 3, 5, 6, 7, 8]
    assert [place for place, _ in read(write(tmp_path / "a.json"))] == [2, 9, 16, 23, 30, 37]


def test_txt_is_a_document_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufefffirst\r\n\nzweite ü\nno newline at the end".encode())
    assert read(path) == [
        (1, ("first",)),
        (2, ("",)),
        (3, ("zweite ü",)),
        (4, ("no newline at the end",)),
    ]
    with pytest.raises(UserError, match='the one column "text"'):
        read(path, ("body",))


def test_several_keys_and_a_path_to_a_nested_one(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json", "a.parquet", "a.arrow"):
        records = read(write(tmp_path / name), ("meta.title", "text"))
        assert [texts for _, texts in records] == [(f"t{i}", t) for i, t in enumerate(TEXTS)]


def test_json_file_that_is_json_lines(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.json")
    assert [texts[0] for _, texts in read(tmp_path / "a.json")] == TEXTS


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("from b")
    (tmp_path / "a.jsonl").write_text('{"text": "from a"}')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.csv").write_text("text\nfrom c\n")
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / ".hidden.txt").write_text("not data")
    for end in (".idx", ".bin", ".json"):
        (tmp_path / f"earlier_text_document{end}").write_text("{}")
    assert [texts[0] for _, texts in read(tmp_path)] == ["from a", "from b", "from c"]
    _, unknown = find_inputs(str(tmp_path))
    assert [path.name for path in unknown] == ["README.md"]
    assert [path.name for path in find_inputs(str(tmp_path / "*.txt"))[0]] == ["b.txt"]


def test_nan_in_another_field_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "score": NaN}\n')
    assert read(path) == [(1, ("a",))]


def test_a_record_larger_than_any_batch(tmp_path: Path) -> None:
    long = "x" * 300_000
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": long}) + "\n" + '{"text": "b"}\n')
    (tmp_path / "b.json").write_text(json.dumps([{"text": long}, {"text": "b"}]))
    for name in ("a.jsonl", "b.json"):
        assert [texts[0] for _, texts in read(tmp_path / name, batch_bytes=1000)] == [long, "b"]


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ('[{"text": "a"},\n {"text": "b"}\n {"text": "c"}]', 3, 'expected ","'),
        ('[{"text": "a"},\n {"text": "b"', 2, "broken JSON"),
        ('[{"text": "a"}', 1, "ends inside"),
        ('[{"text": "a"}]\n[]', 2, "more follows"),
        ('[{"text": "a"},\n 3]', 2, "a number, not an object"),
        ('[{"text": "a"},\n\n {"text": "b", "text": "c"}]', 3, "stands twice"),
        ('[{"text": "a"},\n {"test": "b"}]', 2, 'no key "text"'),
    ],
)
def test_faults_of_a_json_array(tmp_path: Path, content: str, line: int, words: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    for batch_bytes in (1, 1 << 20):
        with pytest.raises(UserError, match=words) as caught:
            read(path, batch_bytes=batch_bytes)
        assert f"{path}:{line}:" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (b"text,id\na,1\nb\n", 3, "1 fields, the header 2"),
        (b'text,id\na,1\n"b"x,2\n', 3, "not a CSV record"),
        (b"text,id\na,1\n\xff,2\n", 3, "not valid Unicode"),
        (b"body,id\na,1\n", 1, 'the column "text" is not in'),
        (b"text,text\na,1\n", 1, "stands 2 times"),
        (b"", 1, "empty"),
    ],
)
def test_faults_of_csv(tmp_path: Path, content: bytes, line: int, words: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read(path)
    assert f"{path}:{line}:" in str(caught.value)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_a_file_cut_short_is_an_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="damaged"):
        read(path)


def test_inputs_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"Near to it: corpus\.jsonl"):
        find_inputs(str(tmp_path / "corpus.json"))
    with pytest.raises(UserError, match="no file at all"):
        find_inputs(str(tmp_path / "empty"))
    with pytest.raises(UserError, match="nor is there a folder"):
        find_inputs("wikimedia/wikipedia")
