"""Every command in docs/convert.md runs as it is written."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from mindspeed_llm.checkpoint.command import main
from tests.unit.checkpoint import tiny

ROOT = Path(__file__).resolve().parents[3]


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/convert.md").read_text(), re.S)
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch) -> None:
    tiny.make(tmp_path / "model_from_hf", "qwen2", tie_word_embeddings=True)
    monkeypatch.chdir(tmp_path)
    found = commands()
    assert len(found) == 4
    for program, script, *arguments in found:
        assert (program, script) == ("python", "convert_ckpt_v2.py")
        main([*arguments, *tiny.QUICK])
    tiny.assert_same(tiny.weights(Path("model_from_hf")), tiny.weights(Path("model_back")))
    for name in re.findall(
        r"model_mcore/(\S+?\.(?:txt|pt))", (ROOT / "docs/convert.md").read_text()
    ):
        assert os.path.exists(f"model_mcore/{name}"), name


def test_every_flag_on_the_page_exists() -> None:
    from mindspeed_llm.flags.parser import all_spellings

    text = (ROOT / "docs/convert.md").read_text()
    known = {**all_spellings("convert_v1"), **all_spellings("pretrain")}
    assert not set(re.findall(r"--[a-z][a-z0-9-]+", text)) - set(known)
