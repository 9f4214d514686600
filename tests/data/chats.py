"""A tokenizer with chat tokens, chat records in every handler's columns, and a plain encoding."""

from __future__ import annotations

import csv
import functools
import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from tokenizers import AddedToken, Tokenizer

from tests.data import small

Turn = tuple[str, str]
IGNORE = -100


@functools.cache
def folder() -> Path:
    """A byte-level tokenizer with the tokens of chatml; nothing is added to a text."""
    target = small.byte_level().parent / "chatml"
    shutil.copytree(small.byte_level(), target)
    backend = Tokenizer.from_file(str(target / "tokenizer.json"))
    backend.add_special_tokens(
        [AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")]
    )
    backend.save(str(target / "tokenizer.json"))
    return target


# Turns of a few conversations: one or more questions, a system text, odd characters.
CHATS: list[list[Turn]] = [
    [("user", "What is 2 + 2?"), ("assistant", "4")],
    [("system", "Be brief."), ("user", "Hello\nyou"), ("assistant", "Hi \U0001f600 汉字")],
    [("user", "a"), ("assistant", "b"), ("user", "c\u2028d\u0085e"), ("assistant", "f g")],
    [("system", "s"), ("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2")],
    [("user", 'quote " and \\ and \t'), ("assistant", "x" * 50)],
]


def reference(turns: Sequence[Turn]) -> tuple[list[int], list[int]]:
    """(ids, labels) of turns in chatml: each piece encoded on its own, answers trained."""
    backend = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    ids: list[int] = []
    labels: list[int] = []

    def write(text: str, trained: bool) -> None:
        piece = backend.encode(text, add_special_tokens=False).ids
        ids.extend(piece)
        labels.extend(piece if trained else [IGNORE] * len(piece))

    start, end = (f"<|im_{name}|>" for name in ("start", "end"))
    for role, content in turns:
        if role == "assistant":
            # Where the prompt's line break meets the answer is one of no merge: \n is a byte here.
            write(f"{start}assistant\n", False)
            write(f"{content}{end}", True)
            write("\n", False)
        else:
            write(f"{start}{role}\n{content}{end}\n", False)
    return ids, labels


def split(turns: Sequence[Turn]) -> tuple[str, list[Turn]]:
    """(system text, other turns)."""
    if turns[0][0] == "system":
        return turns[0][1], list(turns[1:])
    return "", list(turns)


def alpaca(turns: Sequence[Turn]) -> dict[str, Any]:
    system, rest = split(turns)
    texts = [text for _, text in rest]
    return {
        "instruction": texts[-2],
        "input": "",
        "output": texts[-1],
        "history": [[texts[i], texts[i + 1]] for i in range(0, len(texts) - 2, 2)],
        "system": system,
    }


def sharegpt(turns: Sequence[Turn]) -> dict[str, Any]:
    system, rest = split(turns)
    names = {"user": "human", "assistant": "gpt"}
    return {
        "conversations": [{"from": names[role], "value": text} for role, text in rest],
        "system": system,
    }


def openai(turns: Sequence[Turn]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


HANDLERS: dict[str, Callable[[Sequence[Turn]], dict[str, Any]]] = {
    "AlpacaStyleInstructionHandler": alpaca,
    "SharegptStyleInstructionHandler": sharegpt,
    "OpenAIInstructionHandler": openai,
}
FORMATS = ("jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet", "arrow", "csv")


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format that the name says; lists go into CSV as JSON texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if path.name.endswith(".jsonl"):
        path.write_text(lines, encoding="utf-8", newline="")
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.name.endswith(".zst"):
        path.write_bytes(zstandard.compress(lines.encode()))
    elif path.name.endswith(".json"):
        path.write_text(json.dumps(list(rows), ensure_ascii=False, indent=1), encoding="utf-8")
    elif path.name.endswith(".csv"):
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            for row in rows:
                cells = {
                    name: cell if isinstance(cell, str) else json.dumps(cell)
                    for name, cell in row.items()
                }
                table.writerow(cells)
    elif path.name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=2)
    else:
        content = pa.Table.from_pylist(list(rows))
        with pa.OSFile(str(path), "wb") as sink:
            with pa.ipc.new_file(sink, content.schema) as writer:
                writer.write_table(content)
    return path


def stored(prefix: Path | str) -> list[list[int]]:
    """The documents of a data set, read with megatron-core's reader."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(prefix))
    return [ids.tolist() for ids in data[: len(data)]]


def samples(prefix: Path | str) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of each sample of instruction data; its attention mask must be all 1."""
    ids, labels, masks = (
        stored(f"{prefix}_packed_{key}_document")
        for key in ("input_ids", "labels", "attention_mask")
    )
    assert masks == [[1] * len(one) for one in ids]
    return list(zip(ids, labels, strict=True))


def keep_one_engine(patch: pytest.MonkeyPatch) -> None:
    """Preprocess with one engine made once: choosing one takes longer than a small file does."""
    from mindspeed_llm.data.encoder import TokenizersEngine
    from mindspeed_llm.data.preprocess import command as preprocess

    @functools.cache
    def engine(folder: Path) -> TokenizersEngine:
        return TokenizersEngine((folder / "tokenizer.json").read_text(encoding="utf-8"))

    patch.setattr(preprocess, "choose_engine", lambda tokenizer, *_: engine(tokenizer.folder))
