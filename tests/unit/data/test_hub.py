"""Data sets through ``datasets``: its own builders stand for a hub, which is not asked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.readers.hub import looks_like_hub_name
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


def options(tmp_path: Path, name: str, params: dict[str, object]) -> PreprocessOptions:
    (tmp_path / "params.json").write_text(json.dumps(params))
    return PreprocessOptions(
        name,
        str(tmp_path / "out" / "x"),
        handler_name="OpenAIInstructionHandler",
        template={"prompt_type": "chatml"},
        hf_datasets_params=str(tmp_path / "params.json"),
    )


@pytest.mark.slow
def test_a_data_set_loaded_by_its_builder(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pytest.importorskip("datasets")
    rows = [chats.openai(turns) for turns in chats.CHATS]
    source = chats.write(tmp_path / "a.jsonl", rows)
    preprocess(options(tmp_path, "json", {"data_files": str(source)}), tokenizer)
    assert chats.samples(tmp_path / "out" / "x") == [chats.reference(t) for t in chats.CHATS]
    with pytest.raises(UserError, match="nor a data set that could be loaded"):
        preprocess(options(tmp_path, "json", {"data_files": str(tmp_path / "no")}), tokenizer)


def test_without_the_package_the_message_says_what_to_do(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"owner/name: no such file or folder.*pip install dat"):
        preprocess(options(tmp_path, "owner/name", {}), tokenizer)


def test_which_inputs_are_names_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    assert looks_like_hub_name("tatsu-lab/alpaca", None)
    for path in ("data", "data/corpus", "gone.jsonl", "some/where/else", "in/a.parquet", "*.json"):
        assert not looks_like_hub_name(path, None)
