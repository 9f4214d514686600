"""Runs Megatron-Core on Ascend: torch_npu answers what asks for CUDA."""

from __future__ import annotations

from typing import Any

from mindspeed.device.npu import NpuDevice
from mindspeed.device.torch_view import identity_decorator
from mindspeed.features.base import Feature, Level
from mindspeed.patching import ProcessPatch, SymbolPatch, Undo


def _redirect() -> list[Undo]:
    NpuDevice.redirect()

    def undo() -> None:
        """torch_npu offers no way back; its redirection lasts as long as the process."""

    return [undo]


def _identity(original: Any) -> Any:
    return identity_decorator


FEATURE = Feature(
    "npu",
    Level.REQUIRED,
    devices=("npu",),
    patches=(
        ProcessPatch(
            "npu.transfer",
            "torch_npu's own redirection from torch.cuda (process-wide, cannot be reverted)",
            "torch.cuda",
            _redirect,
            devices=("npu",),
        ),
        SymbolPatch(
            "npu.no-compile",
            "torch.compile needs a backend that a plain torch_npu installation lacks",
            "megatron.core.jit:jit_fuser",
            _identity,
            devices=("npu",),
        ),
    ),
)
