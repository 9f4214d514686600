"""Data sets that a dataset_info.json describes: mixed as asked, faults named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats

CHATML = {"prompt_type": "chatml"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    chats.keep_one_engine(monkeypatch)


def info(folder: Path, **entries: dict[str, Any]) -> Path:
    (folder / "dataset_info.json").write_text(json.dumps(entries))
    return folder


def by_name(folder: Path, names: str, tokenizer: Tokenizer, **options: Any) -> Sequence[str]:
    """The answers of the samples, in order."""
    preprocess(
        PreprocessOptions(
            names,
            str(folder / "out" / "x"),
            handler_name="LlamaFactoryInstructionHandler",
            dataset_dir=str(folder),
            template=CHATML,
            **options,
        ),
        tokenizer,
    )
    found = []
    for _, labels in chats.samples(folder / "out" / "x"):
        found.append(tokenizer.decode([one for one in labels if one != -100]))
    return [text.removesuffix("<|im_end|>") for text in found]


def test_data_sets_by_name_one_after_the_other_and_interleaved(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    one = [{"ask": "q", "say": f"a{i}"} for i in range(3)]
    two = [chats.sharegpt([("user", "q"), ("assistant", f"b{i}")]) for i in range(6)]
    chats.write(tmp_path / "one.json", one)
    chats.write(tmp_path / "two.parquet", two)
    info(
        tmp_path,
        one={"file_name": "one.json", "columns": {"prompt": "ask", "response": "say"}},
        two={"file_name": "two.parquet", "formatting": "sharegpt", "num_samples": 5},
    )
    a, b = [f"a{i}" for i in range(3)], [f"b{i}" for i in range(5)]
    assert by_name(tmp_path, "two, one", tokenizer) == b + a
    assert by_name(tmp_path, "one,two", tokenizer, max_samples=2) == [*a[:2], *b[:2]]
    under = by_name(tmp_path, "one,two", tokenizer, mix_strategy="interleave_under")
    assert under == ["a0", "b0", "a1", "b1", "a2", "b2"]
    over = by_name(tmp_path, "one,two", tokenizer, mix_strategy="interleave_over")
    assert over[: len(under)] == under
    assert over[len(under) :] == ["a0", "b3", "a1", "b4", "a2"]
    probs = {"mix_strategy": "interleave_over", "interleave_probs": (0.2, 0.8)}
    first = by_name(tmp_path, "one,two", tokenizer, **probs)
    assert first == by_name(tmp_path, "one,two", tokenizer, **probs)
    assert first != by_name(tmp_path, "one,two", tokenizer, **probs, seed=5)
    assert set(first) == {*a, *b}


WRONG_INFO = [
    ("other", {}, "not in .*there is one"),
    ("one", {"file_name": "gone.json"}, r"no such file"),
    ("one", {"hf_hub_url": "a/b"}, "hf_hub_url: download it first"),
    ("one", {"file_name": "one.json", "formatting": "x"}, "no handler for formatting x"),
    ("one", {"file_name": "one.json", "columns": {"promt": "x"}}, 'no name "promt"'),
    ("one", {"file_name": "one.json", "columns": {"images": "x"}}, "images"),
    ("one", {"file_name": "one.json", "rankng": True}, "rankng cannot be used"),
]


@pytest.mark.parametrize(("name", "entry", "words"), WRONG_INFO)
def test_faults_of_dataset_info(
    tmp_path: Path, tokenizer: Tokenizer, name: str, entry: dict[str, Any], words: str
) -> None:
    chats.write(tmp_path / "one.json", [{"instruction": "a", "output": "b"}])
    info(tmp_path, one=entry)
    with pytest.raises(UserError, match=words):
        by_name(tmp_path, name, tokenizer)
