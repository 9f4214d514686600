"""Wrong invocations and broken files, as users make them: each ends in one message that helps.

The message fits a screen, holds the words that matter and says what to do; the exit status is 2;
there is no traceback; and the folder that the user worked in holds the same files as before.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mindspeed_llm.cli import dispatch
from mindspeed_llm.console import entry_point
from tests.data import small
from tests.e2e.bad_input import CASES, CONVERT, GENERATE, PREPROCESS, TRAIN
from tests.e2e.tiny_model import write_model

ROOT = Path(__file__).resolve().parents[2]
SCREEN = 24

assert len(CASES) >= 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, its Megatron checkpoint, a corpus and its data set, all good."""
    folder = tmp_path_factory.mktemp("good")
    write_model(folder / "model", "llama")
    shutil.copy(small.CORPUS, folder / "corpus.jsonl")
    before = Path.cwd()
    os.chdir(folder)
    try:
        dispatch(shlex.split(PREPROCESS.replace("out/", "data/")))
        dispatch(shlex.split(CONVERT.replace("--save-dir out", "--save-dir mg")))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it to break, as the working folder; the environment is put back afterwards."""
    shutil.copytree(made, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    environment = dict(os.environ)
    yield tmp_path / "work"
    os.environ.clear()
    os.environ.update(environment)


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below, with its size and time of change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_helpful(message: str, says: tuple[str, ...]) -> None:
    lines = [line for line in message.strip().splitlines() if not line.startswith("warning:")]
    assert "Traceback" not in message
    assert 0 < len(lines) <= SCREEN, message
    assert len(message) < 3000, message
    for words in says:
        assert words in message, message


@pytest.mark.parametrize("name", CASES)
def test_message(
    name: str,
    place: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES[name]
    if case.broken is not None:
        case.broken()
    for variable, value in case.environment:
        monkeypatch.setenv(variable, value)
    before = files(place)
    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        entry_point(dispatch, shlex.split(case.command))
    assert end.value.code == 2
    assert_helpful(capfd.readouterr().err, case.says)
    assert files(place) == before


def run(words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


# As users start them: a root script or the verb, in a process of its own.
PROCESSES: dict[str, tuple[list[str], tuple[str, ...], dict[str, str]]] = {
    "preprocess": (
        ["preprocess_data.py", *shlex.split(PREPROCESS)[1:], "--input", "nowhere.jsonl"],
        ("nowhere.jsonl",),
        {},
    ),
    "convert": (
        ["convert_ckpt_v2.py", *shlex.split(CONVERT)[1:], "--load-dir", "nowhere"],
        ("nowhere",),
        {},
    ),
    "pretrain": (
        ["pretrain_gpt.py", *shlex.split(TRAIN)[1:], "--tensor-model-parallel-size", "2"],
        ("1 processes do not divide",),
        {},
    ),
    "two ranks": (
        ["pretrain_gpt.py", *shlex.split(TRAIN)[1:], "--data-path", "nowhere", "--nproc", "2"],
        ("nowhere",),
        {},
    ),
    "generate": (
        ["inference.py", *shlex.split(GENERATE)[1:], "--load", "nowhere"],
        ("nowhere",),
        {},
    ),
    "no CUDA here": (
        ["pretrain_gpt.py", *shlex.split(TRAIN)[1:]],
        ("MINDSPEED_DEVICE=cuda",),
        {"MINDSPEED_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""},
    ),
    "no such device": (
        ["-m", "mindspeed_llm.cli", "doctor"],
        ("MINDSPEED_DEVICE='tpu'", "cpu"),
        {"MINDSPEED_DEVICE": "tpu"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSES)
def test_process(name: str, place: Path) -> None:
    words, says, environment = PROCESSES[name]
    if words[0].endswith(".py"):
        words = [str(ROOT / words[0]), *words[1:]]
    before = files(place)
    result = run(words, **environment)
    assert result.returncode == 2, result.stderr
    assert_helpful(result.stderr, says)
    assert files(place) == before
