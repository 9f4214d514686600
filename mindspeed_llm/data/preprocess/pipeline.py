"""The moving parts of preprocessing: threads between the stages, the writers, the meter."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mindspeed_llm.console import progress, say
from mindspeed_llm.data.encoder import Encoded
from mindspeed_llm.data.readers import Batch
from mindspeed_llm.data.storage.indexed import IndexedWriter, idx_path
from mindspeed_llm.data.storage.manifest import Manifest

T = TypeVar("T")
R = TypeVar("R")

QUEUED = 2


def in_threads(items: Iterator[T], work: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Take items in one thread and work on them in another, while the caller uses the results.

    The order stays. What either of them raises is raised here; both end when the caller stops.
    """

    def worked() -> Iterator[tuple[T, R]]:
        source = ahead(items)
        try:
            for item in source:
                yield item, work(item)
        finally:
            source.close()

    yield from ahead(worked())


def ahead(items: Iterator[T], depth: int = QUEUED) -> Any:
    """A generator of the same items, taken from ``items`` up to ``depth`` ahead in a thread."""
    handover: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(kind: str, value: Any) -> None:
        while not stopped.is_set():
            try:
                handover.put((kind, value), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put("item", item)
                if stopped.is_set():
                    break
            put("end", None)
        except BaseException as error:
            put("error", error)
        finally:
            close = getattr(items, "close", None)
            if close:
                close()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            kind, value = handover.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join()


class Writers:
    """The data sets of all keys: all appear, or none does."""

    def __init__(self, prefixes: Mapping[str, Path], dtype: np.dtype) -> None:
        self.by_key: dict[str, IndexedWriter] = {}
        with contextlib.ExitStack() as stack:
            for key, prefix in prefixes.items():
                self.by_key[key] = stack.enter_context(IndexedWriter(prefix, dtype))
            self._open = stack.pop_all()

    def add(self, encoded: dict[str, Encoded]) -> None:
        """Write the documents of each key."""
        for key, writer in self.by_key.items():
            writer.add(encoded[key].ids, encoded[key].lengths)

    def commit(self, manifests: dict[str, Manifest]) -> None:
        """Put everything in place; the note of an earlier data set never stands by a new one."""
        for writer in self.by_key.values():
            writer.prepare()
        for key, writer in self.by_key.items():
            idx_path(writer.prefix).unlink(missing_ok=True)
            manifests[key].write(writer.prefix)
            writer.publish()

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


class Meter:
    """Shows documents/s and tokens/s: a bar on a terminal, else a line every so many documents."""

    def __init__(self, size: int, log_interval: int) -> None:
        self._bar = progress("B", size or None, "preprocess")
        self._log_interval = log_interval
        self._started = self._last = time.perf_counter()
        self._next = log_interval
        self._documents = self._tokens = self._bytes = 0

    def update(self, batch: Batch, tokens: int) -> None:
        """Count a batch that has been written."""
        self._documents += len(batch.positions)
        self._tokens += tokens
        self._bytes += batch.consumed
        now = time.perf_counter()
        seconds = max(now - self._started, 1e-9)
        rates = f"{self._documents / seconds:,.0f} docs/s, {self._tokens / seconds:,.0f} tokens/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update(batch.consumed)
        # At most a line a second: a fast run would print thousands.
        if self._bar.disable and self._documents >= self._next and now - self._last >= 1:
            self._next = self._documents + self._log_interval
            self._last = now
            megabytes = self._bytes / seconds / 1e6
            say(f"Processed {self._documents} documents ({rates}, {megabytes:.1f} MB/s)")

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
