"""What a Megatron-LM checkout (``megatron.training``) demands at start-up and a CPU lacks."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import ModuleType
from typing import Any

from mindspeed.errors import UserError
from mindspeed.features.base import Feature, Level
from mindspeed.patching import ProcessPatch, SymbolPatch, Undo

_KERNELS = "megatron.core.transformer.custom_layers.batch_invariant_kernels"


class _KernelStandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for Megatron's Triton kernels, which its start-up imports whether used or not."""

    def find_spec(self, fullname, path=None, target=None):
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == _KERNELS else None

    def exec_module(self, module: ModuleType) -> None:
        def enable_batch_invariant_mode() -> None:
            raise UserError("batch-invariant mode needs Triton, which is not installed here")

        def set_batch_invariant_mode(enabled: bool = True) -> Any:
            return enable_batch_invariant_mode() if enabled else nullcontext()

        module.__dict__.update(
            enable_batch_invariant_mode=enable_batch_invariant_mode,
            disable_batch_invariant_mode=lambda: None,
            is_batch_invariant_mode_enabled=lambda: False,
            set_batch_invariant_mode=set_batch_invariant_mode,
        )


def _do_without_triton() -> list[Undo]:
    if importlib.util.find_spec("triton") is not None or _KERNELS in sys.modules:
        return []
    stand_in = _KernelStandIn()
    sys.meta_path.insert(0, stand_in)
    return [lambda: sys.meta_path.remove(stand_in)]


def _compile_only_what_is_missing(original: Callable[[], None]) -> Callable[[], None]:
    def compile_dependencies() -> None:
        """The dataset index helpers where none are found; no fused CUDA kernels."""
        import torch.distributed as dist

        from mindspeed.device import local_rank

        if _has_dataset_helpers():
            return
        if local_rank() == 0:
            from megatron.core.datasets.utils import compile_helpers

            compile_helpers()
        dist.barrier()

    return compile_dependencies


def _has_dataset_helpers() -> bool:
    """Whether the C++ helpers can be imported, if need be those of the installed package."""
    from megatron.core import datasets

    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is None:
        with suppress(importlib.metadata.PackageNotFoundError):
            package = importlib.metadata.distribution("megatron-core")
            datasets.__path__.append(str(package.locate_file("megatron/core/datasets")))
            importlib.invalidate_caches()
    return importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None


FEATURE = Feature(
    "checkout",
    Level.REQUIRED,
    devices=("cpu",),
    patches=(
        ProcessPatch(
            "checkout.no-triton",
            "megatron.training imports Triton kernels at start-up, used or not",
            _KERNELS,
            _do_without_triton,
            devices=("cpu",),
        ),
        SymbolPatch(
            "checkout.compile",
            "megatron.training compiles CUDA kernels at start-up",
            "megatron.training.initialize:_compile_dependencies",
            _compile_only_what_is_missing,
            devices=("cpu",),
        ),
    ),
)
