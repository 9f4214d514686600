"""Filling planned files from two threads, while a third sends what is written to the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from mindspeed_llm.checkpoint.planned_file import PlannedFile

T = TypeVar("T")

THREADS = 2
"""One copies while the other waits for pages or the disk; each holds one tensor at a time."""

FLUSH_SECONDS = 0.1


def fill(
    move: Callable[[T], int],
    items: Sequence[T],
    files: Sequence[PlannedFile],
    wrote: Callable[[int], object],
) -> None:
    """Run ``move`` on every item, tell ``wrote`` the bytes it returns, make ``files`` durable."""
    pool, done = ThreadPoolExecutor(THREADS), threading.Event()
    flusher = threading.Thread(target=_flush, args=(files, done))
    flusher.start()
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


def _flush(files: Sequence[PlannedFile], done: threading.Event) -> None:
    """Keep the disk busy during the filling, so that little is left to wait for at its end."""
    while not done.wait(FLUSH_SECONDS):
        for file in files:
            file.flush()
