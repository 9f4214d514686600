"""Filling planned files from two threads, while a third pushes what is done to the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from mindspeed_llm.checkpoint.planned_file import PlannedFile

T = TypeVar("T")

THREADS = 2
"""One copies while the other waits for pages or the disk; each holds one tensor at a time."""
FLUSH_SECONDS = 0.5


def fill(
    move: Callable[[T], int],
    items: Sequence[T],
    files: Sequence[PlannedFile],
    wrote: Callable[[int], object],
) -> None:
    """Run ``move`` on every item, tell ``wrote`` the bytes it returns, make ``files`` durable.

    Flushing as we go keeps the disk busy from the start; left to the end, all of it would wait.
    """
    done = threading.Event()
    flusher = threading.Thread(target=_flush_until, args=(done, files), daemon=True)
    flusher.start()
    pool = ThreadPoolExecutor(THREADS)
    try:
        for future in as_completed([pool.submit(move, item) for item in items]):
            wrote(future.result())
    finally:
        # After a failure the items not begun are dropped; those running must end before the
        # files are closed under them.
        pool.shutdown(cancel_futures=True)
        done.set()
        flusher.join()
    for file in files:
        file.finish()


def _flush_until(done: threading.Event, files: Sequence[PlannedFile]) -> None:
    while not done.wait(FLUSH_SECONDS):
        for file in files:
            file.flush()
