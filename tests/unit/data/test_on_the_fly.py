"""Raw files as ``--data-path``: prepared once, kept by content, refused where flags are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.datasets.on_the_fly import prepare_raw
from mindspeed_llm.data.storage.parts import INSTRUCTION, Parts
from mindspeed_llm.data.tokenizer import NullTokenizer, load_hf_tokenizer
from mindspeed_llm.flags.config import Config
from tests.data import small


@pytest.fixture(scope="module")
def tokenizer():
    return load_hf_tokenizer(small.byte_level())


def text_file(path: Path, count: int = 20) -> Path:
    path.write_text("".join(json.dumps({"text": f"words {n}"}) + "\n" for n in range(count)))
    return path


def config(*paths, **more) -> Config:
    values = {"data_path": tuple(map(str, paths)), "seq_length": 64, **more}
    return Config.from_values("pretrain", values)


def test_prepared_once_and_kept_by_content(tmp_path, tokenizer, capsys):
    source = text_file(tmp_path / "corpus.jsonl")
    first = prepare_raw(config("2", source), tokenizer).data_path
    assert first[0] == "2" and first[1].startswith(str(tmp_path / "prepared" / "corpus-"))
    assert first[1].endswith("_text_document")
    written = Path(f"{first[1]}.bin").stat().st_mtime_ns
    capsys.readouterr()
    assert prepare_raw(config("2", source), tokenizer).data_path == first
    assert "prepared before" in capsys.readouterr().out
    assert Path(f"{first[1]}.bin").stat().st_mtime_ns == written
    others = [prepare_raw(config(source, append_eod=True), tokenizer).data_path[0]]
    text_file(source, 21)
    others.append(prepare_raw(config(source), tokenizer).data_path[0])
    assert len({first[1], *others}) == 3
    prepare_raw(config(source, overwrite_cache=True), tokenizer)
    assert "preparing" in capsys.readouterr().out


def test_a_killed_preparation_is_done_again(tmp_path, tokenizer):
    source = text_file(tmp_path / "corpus.jsonl")
    prefix = prepare_raw(config(source), tokenizer).data_path[0]
    Path(f"{prefix}.idx").unlink()
    assert prepare_raw(config(source), tokenizer).data_path[0] == prefix
    assert Path(f"{prefix}.idx").is_file()


def test_instruction_data(tmp_path, tokenizer):
    source = tmp_path / "tasks.jsonl"
    rows = [{"instruction": f"say {n}", "input": "", "output": f"yes {n}"} for n in range(9)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {
        "is_instruction_dataset": True,
        "prompt_type": "empty",
        "cache_dir": str(tmp_path / "c"),
    }
    with pytest.raises(UserError, match="name the --handler-name"):
        prepare_raw(config(source, **flags), tokenizer)
    flags["handler_name"] = "AlpacaStyleInstructionHandler"
    prefix = prepare_raw(config(source, **flags), tokenizer).data_path[0]
    assert Path(prefix).parent == tmp_path / "c"
    assert len(Parts(prefix, INSTRUCTION)) == 9
    packed = config(source, **flags, neat_pack=True, reset_attention_mask=True)
    prefix = prepare_raw(packed, tokenizer).data_path[0]
    masks = Parts(prefix, INSTRUCTION).parts["attention_mask"]
    assert max(masks[row].max() for row in range(len(masks))) > 1


def test_prepared_data_pass(tmp_path, tokenizer, capsys):
    source = text_file(tmp_path / "corpus.jsonl")
    prefix = prepare_raw(config(source), tokenizer).data_path[0]
    again = config(prefix, map_keys="{}")
    assert prepare_raw(again, tokenizer) is again.data
    assert "--map-keys has no effect: the data are prepared already" in capsys.readouterr().out


def test_what_cannot_be_prepared(tmp_path, tokenizer):
    source = text_file(tmp_path / "corpus.jsonl")
    with pytest.raises(UserError, match="raw data, which needs a tokenizer"):
        prepare_raw(config(source), NullTokenizer(99))
    with pytest.raises(UserError, match="takes one key of raw data, not --json-keys text title"):
        prepare_raw(config(source, json_keys=("text", "title")), tokenizer)
