"""Broken inputs of chats and pairs: each has a clear outcome, with the file and the row of it."""

from __future__ import annotations

import gzip
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
from tests.data import chats

ALPACA = "AlpacaStyleInstructionHandler"
OPENAI = "OpenAIInstructionHandler"
PAIRS = "AlpacaStylePairwiseHandler"
GOOD = {
    ALPACA: {"instruction": "q", "output": "a"},
    OPENAI: chats.openai([("user", "q"), ("assistant", "a")]),
    PAIRS: {"instruction": "q", "chosen": "a", "rejected": "b"},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    chats.keep_one_engine(monkeypatch)


def run(source: Path, handler: str, tokenizer: Tokenizer, **options: Any) -> Summary:
    return preprocess(
        PreprocessOptions(
            str(source),
            str(source.parent / "out" / "x"),
            handler_name=handler,
            template={"prompt_type": "chatml"},
            max_dropped_share=0.9,
            **options,
        ),
        tokenizer,
    )


def turns(*parts: Any) -> bytes:
    return json.dumps({"messages": list(parts)}).encode()


USER = {"role": "user", "content": "q"}
# name -> (handler, line, words); a name that begins with "left out" is counted, not an error.
LINES: dict[str, tuple[str, bytes, str]] = {
    "truncated": (ALPACA, b'{"instruction": "q", "outp', "not one JSON object"),
    "two objects": (ALPACA, b'{"instruction": "q"}{"output": "a"}', "not one JSON object"),
    "an array": (ALPACA, b'["q", "a"]', "a list, not a JSON object"),
    "a number": (ALPACA, b"3", "a number, not a JSON object"),
    "null": (ALPACA, b"null", "null, not a JSON object"),
    "invalid UTF-8": (ALPACA, b'{"instruction": "\xff", "output": "a"}', "not one JSON object"),
    "overlong UTF-8": (ALPACA, b'{"instruction": "\xc0\xaf", "output": "a"}', "not one JSON"),
    "half a surrogate pair": (
        ALPACA,
        b'{"instruction": "\\ud800", "output": "a"}',
        "not valid Unicode",
    ),
    "key twice": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "output": "b"}',
        'the key "output" stands twice',
    ),
    "another key twice": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "id": 1, "id": 2}',
        'the key "id" stands twice',
    ),
    "key twice inside a turn": (
        OPENAI,
        b'{"messages": [{"role": "user", "content": "q", "content": "r"}]}',
        'the key "content" stands twice',
    ),
    "no output": (ALPACA, b'{"instruction": "q"}', 'no key "output"'),
    "no instruction": (ALPACA, b'{"output": "a"}', 'no key "instruction".*--map-keys'),
    "no messages": (OPENAI, b'{"conversations": []}', 'no key "messages"'),
    "no rejected": (PAIRS, b'{"instruction": "q", "chosen": "a"}', 'no key "rejected"'),
    "output a number": (ALPACA, b'{"instruction": "q", "output": 3}', "a number, not a string"),
    "output a list": (ALPACA, b'{"instruction": "q", "output": ["a"]}', "a list, not a string"),
    "output true": (ALPACA, b'{"instruction": "q", "output": true}', "a boolean, not a string"),
    "input an object": (
        ALPACA,
        b'{"instruction": "q", "input": {}, "output": "a"}',
        '"input" is an object',
    ),
    "system a list": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "system": []}',
        '"system" is a list',
    ),
    "history a number": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "history": 7}',
        '"history" is a number',
    ),
    "history of threes": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "history": [["1", "2", "3"]]}',
        "no pair of texts",
    ),
    "history of numbers": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "history": [[1, 2]]}',
        "a number, not a string",
    ),
    "tools a text": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "tools": "find"}',
        '"tools" is a text that holds no JSON list',
    ),
    "messages an object": (OPENAI, b'{"messages": {"role": "user"}}', "an object, not a list"),
    "messages a text": (OPENAI, b'{"messages": "hello"}', "holds no JSON list"),
    "a turn is a text": (OPENAI, turns("q", "a"), "a string where a turn"),
    "a turn is null": (OPENAI, turns(None), "null where a turn"),
    "unknown role": (OPENAI, turns({"role": "bot", "content": "x"}), "'bot'; known are"),
    "role missing": (OPENAI, turns({"content": "x"}), "None; known are"),
    "role a number": (OPENAI, turns({"role": 1, "content": "x"}), "1; known are"),
    "content a number": (OPENAI, turns({"role": "user", "content": 5}), "a number, not a string"),
    "content a picture": (
        OPENAI,
        turns({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}),
        "no text",
    ),
    "call without a name": (
        OPENAI,
        turns(USER, {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}),
        'no "name"',
    ),
    "calls an object": (
        OPENAI,
        turns(USER, {"role": "assistant", "tool_calls": {"name": "f"}}),
        '"tool_calls" is an object',
    ),
    "arguments a list": (
        OPENAI,
        turns(USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}),
        '"arguments" of a tool call are a list',
    ),
    "reasoning a list": (
        OPENAI,
        turns(USER, {"role": "assistant", "content": "a", "reasoning_content": ["x"]}),
        '"reasoning_content" is a list',
    ),
    "deeply nested": (
        OPENAI,
        b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        "not one JSON object|not valid Unicode or JSON",
    ),
    "left out: blank line": (OPENAI, b"  ", "empty row"),
    "left out: all null": (ALPACA, b'{"instruction": null, "output": null}', "empty turn"),
    "left out: messages null": (OPENAI, b'{"messages": null}', "empty row"),
    "left out: no turns": (OPENAI, b'{"messages": []}', "empty row"),
    "left out: white space": (ALPACA, b'{"instruction": "q", "output": " \\n"}', "empty turn"),
    "left out: empty history": (
        ALPACA,
        b'{"instruction": "q", "output": "a", "history": [["", ""]]}',
        "empty turn",
    ),
    "left out: chosen empty": (
        PAIRS,
        b'{"instruction": "q", "chosen": "", "rejected": "b"}',
        "empty turn",
    ),
}


@pytest.mark.parametrize("name", list(LINES))
def test_a_broken_line_is_named_or_counted(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    handler, line, words = LINES[name]
    good = json.dumps(GOOD[handler]).encode()
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join([good, good, line, good]) + b"\n")
    if name.startswith("left out"):
        summary = run(source, handler, tokenizer)
        assert summary.tally.dropped == {words: 1}
        assert summary.tally.first[words] == f"{source}:3"
        return
    with pytest.raises(UserError, match=words) as caught:
        run(source, handler, tokenizer)
    assert str(caught.value).startswith(f"{source}:3: ")
    assert not (tmp_path / "out").exists()
    summary = run(source, handler, tokenizer, on_error="skip")
    assert (summary.skipped_bad, summary.tally.kept, summary.tally.read) == (1, 3, 4)
    assert summary.tally.first_bad.startswith(f"{source}:3: ")


def broken_files(folder: Path) -> dict[str, tuple[Path, str, str]]:
    """name -> (file, handler, words)."""
    rows = [GOOD[OPENAI]] * 20
    line = json.dumps(GOOD[ALPACA])
    folder.mkdir(exist_ok=True)
    parquet = chats.write(folder / "cut.parquet", rows)
    parquet.write_bytes(parquet.read_bytes()[:-20])
    cut_gzip = folder / "cut.jsonl.gz"
    cut_gzip.write_bytes(gzip.compress((line + "\n").encode() * 999)[:-9])
    array = folder / "array.json"
    array.write_text(f"[{line},\n {line}\n {line}]")
    text = folder / "chat.txt"
    text.write_text("q\na\n")
    table = folder / "wide.csv"
    table.write_text("instruction,output\nq,a\nq,a,b\n")
    numbers = folder / "numbers.parquet"
    pq.write_table(pa.table({"messages": [1, 2]}), numbers)
    other = folder / "other.parquet"
    pq.write_table(pa.table({"text": ["a"]}), other)
    empty = folder / "empty.jsonl"
    empty.write_text("")
    return {
        "parquet cut short": (parquet, OPENAI, "cut.parquet: cannot be read"),
        "gzip cut short": (cut_gzip, ALPACA, "damaged"),
        "comma missing": (array, ALPACA, 'array.json:3: expected ","'),
        "chat in a text file": (text, ALPACA, 'one column "text"'),
        "csv row too wide": (table, ALPACA, "wide.csv:3: the record has 3 fields"),
        "numbers for turns": (numbers, OPENAI, "numbers.parquet:1: .* a number, not a list"),
        "column missing": (other, OPENAI, 'no column "messages".*--map-keys'),
        "empty file": (empty, ALPACA, "of 0 records nothing is left"),
    }


def test_broken_files_say_which_and_where(tmp_path: Path, tokenizer: Tokenizer) -> None:
    cases = broken_files(tmp_path / "in")
    assert len(LINES) + len(cases) >= 50
    for name, (source, handler, words) in cases.items():
        with pytest.raises(UserError, match=words):
            run(source, handler, tokenizer)
            pytest.fail(f"{name}: no error")
    assert not (tmp_path / "in" / "out").exists()


def test_parquet_files_of_different_schemas(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """DATA-11: order and number of columns, large texts and missing options differ by file."""
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"output": ["a"], "instruction": ["q"]}), folder / "a.parquet")
    large = pa.array(["q"], pa.large_string())
    wide = {"id": [1], "instruction": large, "system": ["s"], "output": ["a"], "history": [None]}
    pq.write_table(pa.table(wide), folder / "b.parquet")
    history = pa.array([[["x", "y"]]])
    pq.write_table(
        pa.table({"instruction": ["q"], "output": ["a"], "history": history}), folder / "c.parquet"
    )
    run(folder, ALPACA, tokenizer)
    asked = [("user", "q"), ("assistant", "a")]
    assert chats.samples(tmp_path / "out" / "x") == [
        chats.reference(asked),
        chats.reference([("system", "s"), *asked]),
        chats.reference([("user", "x"), ("assistant", "y"), *asked]),
    ]


def test_unicode_separators_and_huge_lines_are_no_ends(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    odd = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    chat = [("user", odd), ("assistant", "long " * 200_000)]
    for kind in ("jsonl", "json", "csv"):
        source = chats.write(tmp_path / kind / f"a.{kind}", [chats.openai(chat)] * 3)
        assert run(source, OPENAI, tokenizer).tally.kept == 3
        ids, labels = chats.samples(tmp_path / kind / "out" / "x")[1]
        assert odd in tokenizer.decode(ids)
        assert len(labels) > 200_000


@pytest.mark.parametrize("handler", [ALPACA, OPENAI, PAIRS])
def test_fuzzed_bytes_end_in_a_result_or_a_message(
    tmp_path: Path, tokenizer: Tokenizer, handler: str
) -> None:
    draw = random.Random(handler)
    good = b"".join(json.dumps(GOOD[handler]).encode() + b"\n" for _ in range(6))
    source = tmp_path / "a.jsonl"
    outcomes = {"result": 0, "message": 0}
    for turn in range(60):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(data))
            choice = draw.randrange(3)
            if choice == 0:
                data[at] = draw.randrange(256)
            elif choice == 1:
                del data[at : at + draw.randrange(1, 12)]
            else:
                data[at:at] = draw.choice([b'"', b"\\", b"{", b"null", b"\x00", b"[", b"\n"])
        source.write_bytes(bytes(data))
        try:
            run(source, handler, tokenizer, on_error="skip" if turn % 2 else "stop")
        except UserError as error:
            outcomes["message"] += 1
            assert str(source) in str(error) or "records were left out" in str(error)
        else:
            outcomes["result"] += 1
    assert min(outcomes.values()) > 5
