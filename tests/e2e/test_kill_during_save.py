"""CKPT-01: ``kill -9`` while a checkpoint is being written, at ten random moments.

Every start continues from a complete checkpoint, and the run that survives ends with the very
losses of a run that was never killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import train_flags, write_tokens

KILLS = 10
ITERS = 200


def start(argv: list[str]) -> subprocess.Popen:
    """The training command on two ranks, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "mindspeed_llm.cli", "pretrain", "--nproc", "2", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "MINDSPEED_DEVICE": "cpu", "OMP_NUM_THREADS": "1"},
    )


def losses_of(save: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    return {row["iteration"]: row["lm_loss"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("ckpt_format", ["torch", "torch_dist"])
def test_killed_saves_lose_no_run(tmp_path, ckpt_format):
    model = write_tiny_hf(tmp_path / "model", "llama", num_hidden_layers=2)
    data = write_tokens(tmp_path / "data" / "tiny_text_document", repeats=600)
    save = tmp_path / "ckpt"
    more = {
        "ckpt_format": ckpt_format,
        "save": save,
        "save_interval": 1,
        "auto_resume": True,
        "use_distributed_optimizer": True,
    }
    argv = train_flags(model, data, iters=ITERS, **more)
    kills = KILLS if ckpt_format == "torch" else 3
    moments = random.Random(5)
    reached = 0
    for _ in range(kills):
        process = start(argv)
        first = saved_line(process)
        resumed_at = first - 1
        assert resumed_at >= reached - 1, f"went back from {reached} to {resumed_at}"
        time.sleep(moments.uniform(0.0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        reached = first
    process = start([*argv, "--exit-interval", str(reached + 3)])
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    straight = tmp_path / "straight"
    argv = train_flags(model, data, iters=ITERS, **{**more, "save": straight})
    last = max(losses_of(save))
    process = start([*argv, "--save-interval", "1000", "--exit-interval", str(last)])
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert losses_of(save) == losses_of(straight)


def saved_line(process: subprocess.Popen) -> int:
    """Wait for the first save of a run; its iteration."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith("saved iteration"):
            return int(line.split()[2])
    raise AssertionError("".join(seen))
