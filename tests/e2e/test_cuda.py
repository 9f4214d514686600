"""The same commands on a CUDA device: skipped without one. A CPU run is the reference."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import train_flags, write_tokens

pytestmark = pytest.mark.cuda


def run(device: str, *argv: object) -> str:
    """One command of ours on a device, in a fresh process; its standard output."""
    command = [sys.executable, "-m", "mindspeed_llm.cli", *map(str, argv)]
    environment = {**os.environ, "MINDSPEED_DEVICE": device}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(device: str, save: Path, argv: list[str]) -> list[float]:
    run(device, "pretrain", *argv, "--save", save, "--save-interval", 100)
    rows = (save / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["lm_loss"] for row in rows]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_training_on_cuda_follows_the_cpu(tmp_path, family):
    model = write_tiny_hf(tmp_path / "model", family)
    data = write_tokens(tmp_path / "data" / "tiny_text_document")
    argv = train_flags(model, data, iters=10)
    wanted = losses("cpu", tmp_path / "cpu", argv)
    found = losses("cuda", tmp_path / "cuda", argv)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_resume_on_cuda(tmp_path):
    model = write_tiny_hf(tmp_path / "model", "llama")
    data = write_tokens(tmp_path / "data" / "tiny_text_document")
    argv = [*train_flags(model, data, iters=10), "--bf16", "--use-distributed-optimizer"]
    straight = losses("cuda", tmp_path / "straight", argv)
    losses("cuda", tmp_path / "stopped", [*argv, "--exit-interval", "5"])
    resumed = losses("cuda", tmp_path / "stopped", [*argv, "--auto-resume"])
    assert resumed == pytest.approx(straight, rel=1e-3)


def test_greedy_text_on_cuda_equals_the_cpu(tmp_path):
    from mindspeed_llm.quickstart.smollm2 import default_folder

    if not (default_folder() / "model.safetensors").exists():
        pytest.skip("SmolLM2 is not prepared; quickstart.sh does it")
    argv = ["--load", default_folder(), "--prompt", "The capital of France is"]
    argv += ["--max-new-tokens", 24]
    answers = [
        run(device, "generate", *argv).partition("MindSpeed-LLM:")[2].partition("\nElapsed")[0]
        for device in ("cpu", "cuda")
    ]
    assert answers[0] and answers[0] == answers[1]


def test_doctor_names_the_device():
    assert "device cuda" in run("cuda", "doctor")
