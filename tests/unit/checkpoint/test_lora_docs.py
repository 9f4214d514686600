"""Every command in docs/lora.md runs as it is written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from mindspeed_llm.checkpoint.command import main
from tests.families import write_tiny_hf
from tests.unit.checkpoint import adapters
from tests.unit.checkpoint.tiny import QUICK

PAGE = (Path(__file__).resolve().parents[3] / "docs/lora.md").read_text()


def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch) -> None:
    pytest.importorskip("peft")
    base = write_tiny_hf(tmp_path / "model_from_hf", "qwen3")
    adapters.make(base, tmp_path / "adapter_peft")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 4
    for block in blocks:
        program, script, *arguments = shlex.split(block.replace("\\\n", " "))
        assert (program, script) == ("python", "convert_ckpt_v2.py")
        main([*arguments, *QUICK])
    before, after = adapters.deltas(Path("adapter_peft")), adapters.deltas(Path("adapter_back"))
    assert all(torch.equal(before[module], after[module]) for module in before)


def test_every_flag_and_name_on_the_page_exists() -> None:
    from mindspeed_llm.flags.parser import all_spellings

    assert not set(re.findall(r"--[a-z][a-z0-9-]+", PAGE)) - set(all_spellings("convert"))
    writer = Path(main.__code__.co_filename).parent / "lora/megatron_writer.py"
    for name in re.findall(r"`(lora_\w+)`", PAGE):
        assert f"args.{name}" in writer.read_text(), name
