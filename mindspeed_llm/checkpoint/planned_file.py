"""A file whose tensors all have a place before any is written, so they can be filled in any order.

That is what lets a conversion read each source tensor once while it writes all tensor-parallel
files of a stage: memory stays at one tensor, whatever the size of the files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

BLOCK_BYTES = 4 << 20
CALL_BYTES = 1 << 20
"""One write call. Larger ones make Linux look for large contiguous pages for the file's cache,
which was measured to take up to ten times as long (6.18, ext4, 16 MiB calls)."""


@dataclass(frozen=True)
class TensorSpec:
    """Type and size of a tensor that need not exist yet."""

    dtype: torch.dtype
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return self.dtype.itemsize * prod(self.dims)

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The spec that ``tensor`` satisfies."""
        return cls(tensor.dtype, tuple(tensor.shape))


@dataclass(frozen=True)
class Slot:
    """A tensor's place: byte offset in the file and what must be written there."""

    offset: int
    spec: TensorSpec


class PlannedFile:
    """Open file with one slot a tensor; each is written exactly once, from any thread.

    Args:
        held: slots that an earlier run filled.
    """

    def __init__(
        self, path: Path, slots: dict[str, Slot], held: frozenset[str] = frozenset()
    ) -> None:
        self.path = path
        self._slots = slots
        self._held = held
        self._pending = set(slots) - held
        self._fresh: dict[str, int] = {}
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY)

    def holds(self, name: str) -> bool:
        """Whether an earlier run filled the slot of ``name``."""
        return name in self._held

    def write(self, name: str, rows: Sequence[Tensor]) -> int:
        """Fill the slot of ``name`` with ``rows``, one below the other; returns the bytes.

        Raises:
            KeyError, ValueError: no such slot, or rows that do not fit it: our own fault.
            OSError: the disk is full.
        """
        slot = self._slots[name]
        found = _spec_of_rows(rows)
        if found != slot.spec:
            raise ValueError(f"{self.path.name}: {name} is {found}, not {slot.spec}")
        with self._lock:
            if name not in self._pending:
                raise ValueError(f"{self.path.name}: {name} is written twice")
            self._pending.remove(name)
        offset = slot.offset
        for part in rows:
            for block in _contiguous_blocks(part):
                offset += _write_all(self._descriptor, bytes_of(block), offset)
        with self._lock:
            self._fresh[name] = slot.spec.nbytes
        return slot.spec.nbytes

    def flush(self) -> dict[str, int]:
        """Wait until the disk has what was written; slots, with bytes, filled since last time."""
        with self._lock:
            fresh, self._fresh = self._fresh, {}
        os.fdatasync(self._descriptor)
        return fresh

    def finish(self) -> dict[str, int]:
        """Make the file durable and close it; returns what :meth:`flush` would.

        Raises:
            ValueError: if a slot was left empty.
        """
        if self._pending:
            raise ValueError(f"{self.path.name}: never written: {', '.join(sorted(self._pending))}")
        os.fsync(self._descriptor)
        self.close()
        return self._fresh

    def close(self) -> None:
        """Close without checking (after a failure)."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def bytes_of(tensor: Tensor) -> memoryview:
    """The raw bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _spec_of_rows(rows: Sequence[Tensor]) -> TensorSpec:
    first = TensorSpec.of(rows[0])
    if len(rows) == 1:
        return first
    if len({(part.dtype, part.shape[1:]) for part in rows}) > 1:
        raise ValueError(f"rows of different types or widths: {[TensorSpec.of(r) for r in rows]}")
    return TensorSpec(first.dtype, (sum(part.shape[0] for part in rows), *first.dims[1:]))


def _contiguous_blocks(tensor: Tensor) -> Iterator[Tensor]:
    """``tensor`` itself, or copies of a few rows at a time where its rows are not adjacent.

    Small copies reuse the same memory; a copy of the whole would touch fresh pages each time.
    """
    if tensor.is_contiguous():
        yield tensor
        return
    rows = max(1, BLOCK_BYTES * tensor.shape[0] // max(1, tensor.nbytes))
    for block in tensor.split(rows):
        yield block.contiguous()


def _write_all(descriptor: int, data: memoryview, offset: int) -> int:
    length = len(data)
    while data:
        written = os.pwrite(descriptor, data[:CALL_BYTES], offset)
        data = data[written:]
        offset += written
    return length
