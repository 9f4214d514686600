"""``kill -9`` during a conversion, at any moment, leaves nothing that looks like a result."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time

import pytest

from mindspeed_llm.checkpoint import paths
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.tiny import assert_same, to_hf, to_mg, weights

KILLS = 10


def run_and_kill(function, *arguments, after: float) -> bool:
    """Run in a process of its own; True if it was killed before it ended."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 8000}
    return tiny.make(tmp_path_factory.mktemp("killed") / "hf", "llama", **sizes)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("direction", ["to mg", "to hf"])
def test_old_state_or_new_state(direction, source, tmp_path) -> None:
    convert, start = to_mg, source
    if direction == "to hf":
        convert, start = to_hf, to_mg(source, tmp_path / "mg", tp=2, pp=2)
    begin = time.perf_counter()
    whole = convert(start, tmp_path / "whole")
    duration = time.perf_counter() - begin
    target = tmp_path / "out"
    moments = random.Random(5)
    killed = 0
    for _ in range(KILLS):
        killed += run_and_kill(convert, start, target, after=moments.uniform(0, 1.2 * duration))
        if direction == "to mg":
            if paths.read_pointer(target) is None:
                shutil.rmtree(target / "iter_0000001", ignore_errors=True)
                continue
            assert paths.complete_iterations(target) == [1]
            assert_same(weights(source), weights(to_hf(target, tmp_path / "back")))
            shutil.rmtree(tmp_path / "back")
        elif not target.exists():
            continue
        else:
            assert_same(weights(source), weights(target))
            assert (target / "config.json").exists()
        shutil.rmtree(target)
    assert killed, "no process was killed in time: the test shows nothing"
    shutil.rmtree(target, ignore_errors=True)
    again = convert(start, target)
    assert {p.name for p in again.rglob("*")} == {p.name for p in whole.rglob("*")}
    assert not list(tmp_path.glob(".*")), "left-overs of killed runs are cleaned up by the next"
