"""Plain CPU: processes share the processors, gloo carries the collectives."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
from pathlib import Path

import torch

from mindspeed.device.base import Device

_STATUS = Path("/proc/self/status")


class CpuDevice(Device):
    """The processors of this machine, shared by any number of processes."""

    name = "cpu"
    backend = "gloo"

    def torch_device(self, local_rank: int | None = None) -> torch.device:
        return torch.device("cpu")

    def count(self) -> int:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    def check_process_count(self, local_rank: int) -> None:
        """Any number of processes may share the processors."""

    def _select(self, local_rank: int) -> None:
        """There is only one."""

    def synchronize(self) -> None:
        """Operators on a CPU return when they are done."""

    def reset_peak_memory(self) -> None:
        # Linux: "5" resets the high-water mark of the resident set (proc(5), clear_refs).
        # Elsewhere, or where it is not permitted, the peak stays that of the whole run.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def memory_bytes(self) -> tuple[int, int]:
        """Anonymous memory of this process (mapped files, such as safetensors, do not count)."""
        if not _STATUS.exists():
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            peak *= 1 if sys.platform == "darwin" else 1024
            return peak, peak
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        sizes = {key: int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "VmRSS", "VmHWM")}
        current = sizes["RssAnon"]
        return current, max(current, sizes["VmHWM"] - (sizes["VmRSS"] - current))

    def total_memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def get_rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.set_rng_state(state)

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        return None

    def versions(self) -> dict[str, str]:
        return {
            "processor": _processor_name(),
            "cores": str(os.cpu_count()),
            "threads per process": str(torch.get_num_threads()),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "bf16 matrix products": "native" if _has_native_bf16() else "emulated (slow)",
        }


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _has_native_bf16() -> bool:
    """Whether oneDNN multiplies bf16 with the processor's own instructions."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() if torch.backends.mkldnn.enabled else False
