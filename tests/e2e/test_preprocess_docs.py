"""Every command in docs/preprocess.md runs as it is written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from mindspeed_llm.data.indexed import check_indexed
from mindspeed_llm.data.preprocess import main
from tests.data import small

PAGE = Path(__file__).resolve().parents[2] / "docs" / "preprocess.md"


def commands() -> list[list[str]]:
    """The arguments of the page's commands, in order."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[2:] for line in lines]


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small.byte_level(), "model_from_hf")
    shutil.copy(small.CORPUS, "corpus.jsonl")
    Path("damaged.jsonl").write_text('{"text": "good"}\n{"text": \n{"text": "good too"}\n')
    found = commands()
    assert len(found) == 4
    for argv in found:
        assert main(argv) == 0
    made = {
        "data/corpus_text_document": 32,
        "data/two_text_document": 32,
        "data/two_meta.title_document": 32,
        "data/mended_text_document": 2,
        "joined_text_document": 66,
    }
    for prefix, documents in made.items():
        assert check_indexed(prefix).sequences == documents
