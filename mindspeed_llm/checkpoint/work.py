"""Filling planned files from two threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from mindspeed_llm.checkpoint.planned_file import PlannedFile

T = TypeVar("T")

THREADS = 2
"""One copies while the other waits for pages or the disk; each holds one tensor at a time."""


def fill(
    move: Callable[[T], int],
    items: Sequence[T],
    files: Sequence[PlannedFile],
    wrote: Callable[[int], object],
) -> None:
    """Run ``move`` on every item, tell ``wrote`` the bytes it returns, make ``files`` durable."""
    pool = ThreadPoolExecutor(THREADS)
    try:
        for future in as_completed([pool.submit(move, item) for item in items]):
            wrote(future.result())
    finally:
        # After a failure the items not begun are dropped; those running must end before the
        # files are closed under them.
        pool.shutdown(cancel_futures=True)
    for file in files:
        file.finish()
