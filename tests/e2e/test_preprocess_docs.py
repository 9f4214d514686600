"""Every command in docs/preprocess.md runs as it is written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from mindspeed_llm.data.preprocess.command import main
from mindspeed_llm.data.storage.indexed import check_indexed
from tests.data import chats, small

PAGE = Path(__file__).resolve().parents[2] / "docs" / "preprocess.md"


def commands() -> list[list[str]]:
    """The arguments of the page's commands, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[2:] for line in lines]


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(chats.folder(), "model_from_hf")
    shutil.copy(small.CORPUS, "corpus.jsonl")
    Path("damaged.jsonl").write_text('{"text": "good"}\n{"text": \n{"text": "good too"}\n')
    alpaca = [chats.alpaca(turns) for turns in chats.CHATS]
    talks = [chats.openai(turns) for turns in chats.CHATS]
    chats.write(Path("alpaca.json"), alpaca)
    chats.write(Path("chats.jsonl"), talks)
    pairs = [{"question": "q", "chosen": "better", "rejected": "worse"}]
    chats.write(Path("pairs.jsonl"), pairs * 3)
    chats.write(Path("named/alpaca.json"), alpaca)
    chats.write(Path("named/chats.jsonl"), talks)
    info = {
        "alpaca_demo": {"file_name": "alpaca.json"},
        "chats_demo": {"file_name": "chats.jsonl", "formatting": "openai"},
    }
    Path("named/dataset_info.json").write_text(json.dumps(info))
    chats.keep_one_engine(monkeypatch)
    found = commands()
    assert len(found) == 12
    for argv in found:
        assert main(argv) == 0
    made = {
        "data/corpus_text_document": 32,
        "data/two_text_document": 32,
        "data/two_meta.title_document": 32,
        "data/mended_text_document": 2,
        "data/parts_text_document": 32,
        "data/alpaca_packed_labels_document": 5,
        "data/chats_packed_attention_mask_document": 1,
        "data/pairs_packed_rejected_labels_document": 3,
        "data/joined_packed_input_ids_document": 5,
        "joined_text_document": 98,
    }
    for prefix, documents in made.items():
        assert check_indexed(prefix).sequences == documents
    assert check_indexed("data/mixed_packed_labels_document").sequences >= 10
