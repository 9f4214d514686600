"""A file whose tensors all have a place before any is written, so they can be filled in any order.

That is what lets a conversion read each source tensor once while it writes all tensor-parallel
files of a stage: memory stays at one tensor, whatever the size of the files.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor


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
    """Open file with one slot a tensor; each is written exactly once, from any thread."""

    def __init__(self, path: Path, slots: dict[str, Slot]) -> None:
        self.path = path
        self._slots = slots
        self._pending = set(slots)
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_WRONLY)

    def write(self, name: str, tensor: Tensor) -> int:
        """Fill the slot of ``name``; returns the number of bytes.

        Raises:
            KeyError, ValueError: no such slot, or a tensor that does not fit it: our own fault.
            OSError: the disk is full.
        """
        slot = self._slots[name]
        if TensorSpec.of(tensor) != slot.spec:
            found = TensorSpec.of(tensor)
            raise ValueError(f"{self.path.name}: {name} is {found}, not {slot.spec}")
        with self._lock:
            if name not in self._pending:
                raise ValueError(f"{self.path.name}: {name} is written twice")
            self._pending.remove(name)
        _write_all(self._descriptor, bytes_of(tensor), slot.offset)
        return slot.spec.nbytes

    def finish(self) -> None:
        """Make the file durable and close it.

        Raises:
            ValueError: if a slot was left empty.
        """
        if self._pending:
            raise ValueError(f"{self.path.name}: never written: {', '.join(sorted(self._pending))}")
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Close without checking (after a failure)."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def bytes_of(tensor: Tensor) -> memoryview:
    """The raw bytes of a CPU tensor; without a copy if it is contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        # One call writes 2 GiB at most.
        written = os.pwrite(descriptor, data, offset)
        data = data[written:]
        offset += written
