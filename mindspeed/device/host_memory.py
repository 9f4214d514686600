"""How the C library hands out host memory: keep what a step frees for the next one.

glibc gives freed memory back to the system above a threshold, and takes large blocks from it anew
each time. A training step on a CPU then pays for a page fault per 4 KiB of activations, step after
step.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_KEEP_ALL = 2**31 - 1
_LARGEST_MMAP_THRESHOLD = 32 << 20  # DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems
_GLIBC_DEFAULT = 128 << 10
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"


def keep_freed_memory() -> list[Callable[[], None]]:
    """Let malloc keep freed memory, and torch ask for huge pages; returns how to undo it.

    Settings of the user's (MALLOC_TRIM_THRESHOLD_, THP_MEM_ALLOC_ENABLE, another malloc) stay.
    """
    if not sys.platform.startswith("linux") or "LD_PRELOAD" in os.environ:
        return []
    undo: list[Callable[[], None]] = []
    if _HUGE_PAGES not in os.environ:
        os.environ[_HUGE_PAGES] = "1"  # read by torch at its first allocation
        undo.append(_forget_huge_pages)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(_TRIM_THRESHOLD, _KEEP_ALL)
        mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)

        def restore() -> None:
            mallopt(_TRIM_THRESHOLD, _GLIBC_DEFAULT)
            mallopt(_MMAP_THRESHOLD, _GLIBC_DEFAULT)

        undo.append(restore)
    return undo


def _forget_huge_pages() -> None:
    os.environ.pop(_HUGE_PAGES, None)
