"""Which device this process computes on. The only package that names torch.cuda or torch_npu.

``MINDSPEED_DEVICE=cpu|cuda|npu`` overrides the choice.
"""

from __future__ import annotations

import os
from functools import lru_cache

from mindspeed.device import cuda, npu
from mindspeed.device.base import Device, local_rank
from mindspeed.device.cpu import CpuDevice
from mindspeed.device.cuda import CudaDevice
from mindspeed.device.npu import NpuDevice
from mindspeed.errors import UserError

__all__ = ["CpuDevice", "CudaDevice", "Device", "NpuDevice", "get_device", "local_rank"]

ENV = "MINDSPEED_DEVICE"


@lru_cache(maxsize=1)
def get_device() -> Device:
    """The device of this process: NPU if usable, else CUDA, else CPU. Chosen once.

    Raises:
        UserError: ``MINDSPEED_DEVICE`` names a device that is absent or unknown.
    """
    return choose(os.environ.get(ENV, "").strip().lower())


def choose(wanted: str) -> Device:
    """Choose a device; ``wanted`` is "cpu", "cuda", "npu" or "" for the best one present."""
    if wanted not in ("", "cpu", "cuda", "npu"):
        raise UserError(
            f"{ENV}={wanted!r} is not a device: use cpu, cuda or npu, or leave it unset"
        )
    if wanted == "cpu":
        return CpuDevice(f"{ENV}=cpu")
    npu_ok, npu_found = npu.usable() if wanted in ("", "npu") else (False, "")
    if npu_ok:
        return NpuDevice(npu_found)
    if wanted == "npu":
        raise UserError(
            f"{ENV}=npu was asked for, but {npu_found}. Install torch-npu and its CANN drivers, "
            f"or unset {ENV} to use what is there"
        )
    cuda_ok, cuda_found = cuda.usable()
    if cuda_ok:
        return CudaDevice(cuda_found)
    if wanted == "cuda":
        raise UserError(
            f"{ENV}=cuda was asked for, but {cuda_found}. Install a CUDA build of torch and its "
            f"driver, or unset {ENV} to use what is there"
        )
    return CpuDevice(f"no NPU ({npu_found}) and no CUDA ({cuda_found})")
