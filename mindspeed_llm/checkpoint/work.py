"""Filling planned files from two threads, while a third sends what is written to the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Protocol, TypeVar

from mindspeed_llm.checkpoint.planned_file import PlannedFile

T = TypeVar("T")

THREADS = 2
"""One copies while the other waits for pages or the disk; each holds one tensor at a time."""

FLUSH_SECONDS = 0.1


class Work(Protocol):
    """Who is told of the progress, and knows what an earlier run has done."""

    def held(self, path: Path) -> frozenset[str]:
        """Slots of the file ``path`` that an earlier run filled and that are on the disk."""
        ...

    def wrote(self, nbytes: int) -> None:
        """So many bytes more were written."""
        ...

    def durable(self, path: Path, slots: Mapping[str, int]) -> None:
        """These slots of the file ``path``, of so many bytes, are on the disk now."""
        ...


def fill(
    move: Callable[[T], int], items: Sequence[T], files: Sequence[PlannedFile], work: Work
) -> None:
    """Run ``move`` on every item, which returns the bytes it wrote, and make ``files`` durable."""
    pool, done = ThreadPoolExecutor(THREADS), threading.Event()
    with ThreadPoolExecutor(1) as background:
        flushing = background.submit(_flush, files, done, work)
        try:
            for future in as_completed([pool.submit(move, item) for item in items]):
                work.wrote(future.result())
        finally:
            # After a failure the items not begun are dropped; those running must end before the
            # files are closed under them.
            pool.shutdown(cancel_futures=True)
            done.set()
    # The system reports a failed write to one caller only: if that was the flusher, it counts.
    flushing.result()
    for file in files:
        work.durable(file.path, file.finish())


def _flush(files: Sequence[PlannedFile], done: threading.Event, work: Work) -> None:
    """Keep the disk busy during the filling, so that little is left to wait for at its end."""
    while not done.wait(FLUSH_SECONDS):
        for file in files:
            work.durable(file.path, file.flush())
