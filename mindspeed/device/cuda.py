"""NVIDIA (or ROCm) devices through ``torch.cuda``."""

from __future__ import annotations

import torch

from mindspeed.device.base import Device, local_rank

# Dense bf16/fp16 peaks in FLOP/s from the vendor's data sheets, first match on the card's name.
_PEAK_16_BIT = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("V100", 125e12),
    ("RTX 4090", 165e12),
)


class CudaDevice(Device):
    """CUDA devices; one process each."""

    name = "cuda"
    backend = "nccl"

    def torch_device(self, local_rank_: int | None = None) -> torch.device:
        return torch.device("cuda", local_rank() if local_rank_ is None else local_rank_)

    def count(self) -> int:
        return torch.cuda.device_count()

    def _select(self, local_rank: int) -> None:
        torch.cuda.set_device(local_rank)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def memory_bytes(self) -> tuple[int, int]:
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()

    def total_memory_bytes(self) -> int:
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory

    def get_rng_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.cuda.set_rng_state(state)

    def seed(self, seed: int) -> None:
        torch.cuda.manual_seed(seed)

    def peak_flops(self, dtype: torch.dtype) -> float | None:
        if dtype not in (torch.bfloat16, torch.float16):
            return None
        name = torch.cuda.get_device_name()
        return next((peak for card, peak in _PEAK_16_BIT if card in name), None)

    def versions(self) -> dict[str, str]:
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        return {
            "devices": f"{self.count()} x {torch.cuda.get_device_name(0)}",
            "memory each": f"{torch.cuda.get_device_properties(0).total_memory / 2**30:.0f} GiB",
            "cuda": str(torch.version.cuda or torch.version.hip),
            "nccl": nccl,
        }


def usable() -> tuple[bool, str]:
    """Whether CUDA works here, and what was found."""
    if torch.cuda.is_available():
        return True, f"{torch.cuda.device_count()} CUDA device(s)"
    if torch.version.cuda is None and torch.version.hip is None:
        return False, f"torch {torch.__version__} was built without CUDA"
    return False, f"torch {torch.__version__} has CUDA support, but no device answers"
