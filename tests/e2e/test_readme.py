"""The README's commands run as they stand there, and what it points at exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mindspeed_llm.models.registry import get_family
from tests.data import small
from tests.e2e.tiny_model import write_model

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading of the README."""
    return re.split(r"^## ", README.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def block(text: str) -> str:
    """Its first block of shell commands."""
    return re.findall(r"```bash\n(.*?)```", text, flags=re.S)[0]


def shell(script: str, folder: Path, timeout: float = 400) -> str:
    """Run commands as a user does, in ``.venv``'s environment, ending at the first that fails."""
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama"])
def test_the_walk_through(family: str, tmp_path: Path) -> None:
    """From your own model: preprocess, convert, pretrain on two ranks, convert back, generate."""
    write_model(tmp_path / "model", family)
    shutil.copy(small.CORPUS, tmp_path / "corpus.jsonl")
    output = shell(block(section("From your own model")), tmp_path)
    assert "iteration        4/       4" in output
    assert output.count("MindSpeed-LLM:") == 2

    from transformers import AutoModelForCausalLM, AutoTokenizer

    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    assert trained.num_parameters() > 0
    assert len(AutoTokenizer.from_pretrained(tmp_path / "trained")) > 256


@pytest.mark.slow
def test_the_training_page(tmp_path: Path) -> None:
    """The command of docs/training.md, with a tiny model in the folders that it names."""
    write_model(tmp_path / "HF_DIR", "llama")
    (tmp_path / "HF_OR_MEGATRON_DIR").symlink_to("HF_DIR")
    shutil.copy(small.CORPUS, tmp_path / "corpus.jsonl")
    shell(
        "mindspeed-llm preprocess --input corpus.jsonl --output-prefix corpus --append-eod "
        "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path HF_DIR",
        tmp_path,
    )
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert "iteration        4/       4" in shell(block(page), tmp_path)


def test_the_scripts_are_there_and_parse() -> None:
    for name in ("quickstart.sh", "test.sh", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
    for script in [*ROOT.glob("*.sh"), *ROOT.glob("scripts/*.sh"), ROOT / ".ci/run"]:
        subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


def test_the_tree_and_the_tables_name_what_exists() -> None:
    tree = re.findall(r"```\n(mindspeed/.*?)```", README, flags=re.S)[0]
    folder = ""
    for line in tree.splitlines():
        name = line.lstrip("├└─ ").split()[0]
        if line.startswith(("├", "└")):
            assert (ROOT / folder / name).exists(), line
        elif name.endswith("/"):
            folder = name
            assert (ROOT / folder).is_dir(), line
    for script in re.findall(r"`python (benchmarks/\w+\.py)`", README):
        assert (ROOT / script).is_file(), script
    for row in re.findall(r"^\| \w+ \| (`.*?`) \|", section("Models"), flags=re.M)[1:]:
        for name in re.findall(r"`(.+?)`", row):
            get_family(name)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
