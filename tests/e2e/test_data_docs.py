"""Every command in docs/data.md runs as it is written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.data import chats
from tests.families import write_tiny_hf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"
TAIL = ["--handler-name", "AlpacaStyleInstructionHandler", "--prompt-type", "qwen"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a raw file, and data made of it."""
    from mindspeed_llm.data.preprocess.command import main
    from mindspeed_llm.data.tokenizer import load_hf_tokenizer

    monkeypatch.chdir(tmp_path)
    folder = chats.folder()
    size = load_hf_tokenizer(folder).vocab_size
    write_tiny_hf(Path("model"), "qwen3", vocab_size=size, max_position_embeddings=512)
    for path in folder.iterdir():
        shutil.copy(path, "model")
    chats.write(Path("alpaca.json"), [chats.alpaca(turns) for turns in chats.CHATS] * 4)
    chats.keep_one_engine(monkeypatch)
    made = ["--input", "alpaca.json", "--tokenizer-name-or-path", "model", *TAIL]
    assert main([*made, "--output-prefix", "data/alpaca"]) == 0
    packed = ["--pack", "--neat-pack", "--seq-length", "512"]
    assert main([*made, "--output-prefix", "data/rows", *packed]) == 0
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_page(place: Path, capfd) -> None:
    from mindspeed_llm.cli import dispatch

    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line) for line in lines if line and not line.startswith("#")]
    assert len(commands) == 5
    for command in commands:
        assert command[0] == "mindspeed-llm"
        assert dispatch(command[1:]) == 0, command
    out = capfd.readouterr().out
    assert out.count("lm loss:") == 2 * 3 or out.count("iteration") >= 3
    assert Path("alpaca.html").is_file() and list(Path("prepared").glob("alpaca-*.idx"))
