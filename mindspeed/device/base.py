"""What the rest of the code may ask of a device. One subclass a kind: cpu.py, cuda.py, npu.py."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

import torch

from mindspeed.errors import UserError


class Device(ABC):
    """The kind of device this process computes on.

    Attributes:
        name: "cpu", "cuda" or "npu" (also torch's device type).
        backend: the ``torch.distributed`` backend of its collectives.
        reason: one line saying why this kind was chosen.
    """

    name: str
    backend: str

    def __init__(self, reason: str) -> None:
        self.reason = reason

    @abstractmethod
    def torch_device(self, local_rank: int | None = None) -> torch.device:
        """The ``torch.device`` of a process with this local rank (default: this process)."""

    @abstractmethod
    def count(self) -> int:
        """How many devices of this kind this machine has (for a CPU: processes it was given)."""

    @abstractmethod
    def _select(self, local_rank: int) -> None:
        """Make device ``local_rank`` the current one."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything queued on the current device is done."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Start a new period for the peak of :meth:`memory_bytes`."""

    @abstractmethod
    def memory_bytes(self) -> tuple[int, int]:
        """Memory in use now and its peak since the last reset, in bytes."""

    @abstractmethod
    def total_memory_bytes(self) -> int:
        """Memory of the current device, in bytes."""

    @abstractmethod
    def get_rng_state(self) -> torch.Tensor:
        """The state of the device's default random generator."""

    @abstractmethod
    def set_rng_state(self, state: torch.Tensor) -> None:
        """Set the state of the device's default random generator."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed the device's default random generator."""

    @abstractmethod
    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """The vendor's dense matrix-product peak in FLOP/s; None where it is not known."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """What ``doctor`` prints about the device and its software, in order."""

    def set_current(self, local_rank: int) -> None:
        """Make the device of this process current.

        Raises:
            UserError: there are more processes on this machine than devices.
        """
        self.check_process_count(local_rank)
        self._select(local_rank)

    def check_process_count(self, local_rank: int) -> None:
        """Refuse a launch with more processes than devices, before the driver does so obscurely."""
        processes = max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), local_rank + 1)
        if processes > self.count():
            raise UserError(
                f"{processes} processes were started on this machine, but it has {self.count()} "
                f"{self.name} device(s): start at most {self.count()} "
                f"(torchrun --nproc_per_node, --nproc), or set MINDSPEED_DEVICE=cpu, "
                f"where any number of processes share the processors"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.reason}>"


def local_rank() -> int:
    """This process's number on its machine, as the launcher gave it (0 when alone)."""
    return int(os.environ.get("LOCAL_RANK", "0"))
