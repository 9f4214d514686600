"""A pool of worker processes that stand for ranks, paid for once per test session.

Importing torch and Megatron costs seconds per process; a pool pays it once::

    def losses(rank, world, tensor_parallel):        # a module-level function in a test file
        ...
        return value                                  # picklable

    def test_something(pool):
        results = pool(2).run(losses, tensor_parallel=2)     # one result per rank

Each ``run`` gives the function a fresh gloo process group of that size and destroys Megatron's
state and the group afterwards. An exception in a rank fails the test with its traceback. A run
that takes longer than ``timeout`` seconds kills the pool.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class RankError(AssertionError):
    """A rank raised; the message holds its traceback."""


# Gloo's threads wake up all the time, and those of groups that something still refers to stay.
MOST_THREADS = 150


class Pool:
    """``size`` ranks that run module-level functions ``f(rank, world, **kwargs)`` together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        self._processes: list[subprocess.Popen] = []
        self._connections: list[Any] = []

    def run(self, function: Callable, timeout: float = 180.0, **kwargs: Any) -> list[Any]:
        """Run ``function`` on every rank and return the results in rank order."""
        if any(_threads(process.pid) > MOST_THREADS for process in self._processes):
            self.close()
        if not self._processes:
            self._start()
        target = (function.__module__, function.__qualname__)
        port = _free_port()
        for connection in self._connections:
            connection.send((target, port, kwargs))
        results, errors = [], []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(timeout):
                self.close()
                raise RankError(f"rank {rank} gave no answer within {timeout} s: {errors}")
            try:
                ok, value = connection.recv()
            except EOFError:
                self.close()
                raise RankError(f"rank {rank} died: {errors}") from None
            (results if ok else errors).append(value)
        if errors:
            # The other ranks may wait in a collective for the one that failed.
            self.close()
            raise RankError("\n".join(errors))
        return results

    def close(self) -> None:
        """End the workers; the next ``run`` starts new ones."""
        for process in self._processes:
            # With the processes that write checkpoints for it.
            os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []

    def _start(self) -> None:
        address = str(Path(self._folder.name) / f"socket{os.getpid()}")
        Path(address).unlink(missing_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "MINDSPEED_DEVICE": "cpu",
        }
        with Listener(address, "AF_UNIX") as listener:
            connections = {}
            for rank in range(self.size):
                command = [sys.executable, "-m", "tests.parallel.pool", address]
                command += [str(rank), str(self.size)]
                self._processes.append(
                    subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
                )
            for _ in range(self.size):
                connection = listener.accept()
                connections[connection.recv()] = connection
        self._connections = [connections[rank] for rank in range(self.size)]


def _threads(pid: int) -> int:
    """Threads of a process; 0 where the system does not tell."""
    folder = Path(f"/proc/{pid}/task")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _serve(address: str, rank: int, size: int) -> None:
    import torch

    import mindspeed.megatron_adaptor  # noqa: F401

    torch.set_num_threads(1)
    connection = Client(address, "AF_UNIX")
    connection.send(rank)
    while True:
        try:
            (module, name), port, kwargs = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, _run_one(module, name, port, rank, size, kwargs)))
        except BaseException:
            connection.send((False, f"rank {rank}:\n{traceback.format_exc()}"))


def _run_one(module: str, name: str, port: int, rank: int, size: int, kwargs: dict) -> Any:
    import torch

    from mindspeed_llm.distributed import shutdown

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    function = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    try:
        return function(rank, size, **kwargs)
    finally:
        shutdown()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
