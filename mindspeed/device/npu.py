"""Ascend devices through ``torch_npu``, which is imported only where it is asked for."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from mindspeed.device.base import Device, local_rank


class NpuDevice(Device):
    """Ascend NPUs; one process each."""

    name = "npu"
    backend = "hccl"

    @property
    def _npu(self) -> Any:
        return torch.npu  # type: ignore[attr-defined]

    def torch_device(self, local_rank_: int | None = None) -> torch.device:
        return torch.device("npu", local_rank() if local_rank_ is None else local_rank_)

    def count(self) -> int:
        return self._npu.device_count()

    def _select(self, local_rank: int) -> None:
        self._npu.set_device(local_rank)

    def synchronize(self) -> None:
        self._npu.synchronize()

    def reset_peak_memory(self) -> None:
        self._npu.reset_peak_memory_stats()

    def memory_bytes(self) -> tuple[int, int]:
        return self._npu.memory_allocated(), self._npu.max_memory_allocated()

    def total_memory_bytes(self) -> int:
        return self._npu.get_device_properties(self._npu.current_device()).total_memory

    def get_rng_state(self) -> torch.Tensor:
        return self._npu.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self._npu.set_rng_state(state)

    def seed(self, seed: int) -> None:
        self._npu.manual_seed(seed)

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        return None  # no public per-model table that could be checked here

    def versions(self) -> dict[str, str]:
        import torch_npu

        return {
            "devices": f"{self.count()} x {self._npu.get_device_name(0)}",
            "torch_npu": torch_npu.__version__,
        }

    @staticmethod
    def redirect() -> None:
        """Let torch_npu answer everything that asks for CUDA (process-wide, by its own design)."""
        import torch_npu.contrib.transfer_to_npu  # noqa: F401


def usable() -> tuple[bool, str]:
    """Whether an NPU works here, and what was found (a broken torch_npu is a finding)."""
    if importlib.util.find_spec("torch_npu") is None:
        return False, "torch_npu is not installed"
    try:
        import torch_npu  # noqa: F401

        if torch.npu.is_available():  # type: ignore[attr-defined]
            return True, f"{torch.npu.device_count()} NPU(s)"  # type: ignore[attr-defined]
    except Exception as error:  # its loader raises OSError, RuntimeError, ImportError, ...
        return False, f"torch_npu is installed but does not load ({type(error).__name__}: {error})"
    return False, "torch_npu is installed, but no device answers"
