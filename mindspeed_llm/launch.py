"""``--nproc N``: start the same command as N ranks on this machine, without torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

POLL_SECONDS = 0.1
GRACE_SECONDS = 30.0


def is_rank() -> bool:
    """Whether a launcher (torchrun or this one) started this process as one of its ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launch(module: str, argv: list[str], nproc: int) -> int:
    """Run ``python -m module argv`` as ``nproc`` ranks and wait for them.

    The first rank that fails ends the others. SIGINT and SIGTERM are passed on, so that a
    training run can save before it stops.

    Returns:
        0, or the exit status of the first rank that failed.
    """
    threads = max(1, (os.cpu_count() or 1) // nproc)
    shared = {
        **os.environ,
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
    }
    command = [sys.executable, "-m", module, *argv]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(nproc)
    ]

    def pass_on(number: int, _frame: object) -> None:
        for process in ranks:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    try:
        return _wait(ranks)
    finally:
        _end(ranks)


def _wait(ranks: list[subprocess.Popen]) -> int:
    while True:
        codes = [process.poll() for process in ranks]
        failed = [code for code in codes if code]
        if failed:
            # A rank killed by signal n is reported as a shell would: 128 + n.
            return 128 - failed[0] if failed[0] < 0 else failed[0]
        if all(code == 0 for code in codes):
            return 0
        time.sleep(POLL_SECONDS)


def _end(ranks: list[subprocess.Popen]) -> None:
    """End what still runs: asked first, so that files are left whole, then killed."""
    running = [process for process in ranks if process.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
