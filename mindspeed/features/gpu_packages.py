"""Packages of GPU kernels are optional: one that cannot work or does not load counts as absent.

Megatron tries them and expects ImportError; a broken one may raise anything (OSError from a missing
library, RuntimeError from a version check) and would end the program.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

from mindspeed.device import get_device
from mindspeed.features.base import Feature, Level
from mindspeed.patching import ProcessPatch, Undo

PACKAGES = (
    "transformer_engine",
    "transformer_engine_torch",
    "flash_attn",
    "flash_attn_2_cuda",
    "flash_attn_3",
    "flashattn_hopper",
    "apex",
    "amp_C",
    "grouped_gemm",
    "deep_ep",
    "causal_conv1d",
    "mamba_ssm",
    "emerging_optimizers",
)


class _Guard(importlib.abc.MetaPathFinder):
    """Turns every failure to load such a package into ModuleNotFoundError."""

    def __init__(self, usable: bool) -> None:
        self._usable = usable

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in PACKAGES:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                # The spec stays findable: only executing the module is guarded.
                if hasattr(spec.loader, "__dict__"):
                    self._guard(spec.loader, fullname)
                return spec
        return None

    def _guard(self, loader: Any, name: str) -> None:
        own_exec = loader.exec_module

        def guarded(module: Any) -> None:
            del loader.exec_module
            if not self._usable:
                raise ModuleNotFoundError(f"{name} needs CUDA; this run does without", name=name)
            try:
                own_exec(module)
            except Exception as error:
                raise ModuleNotFoundError(
                    f"{name} is installed but does not load "
                    f"({type(error).__name__}: {error}); this run does without",
                    name=name,
                ) from error

        loader.exec_module = guarded


def _install() -> list[Undo]:
    guard = _Guard(usable=get_device().name == "cuda")
    sys.meta_path.insert(0, guard)
    return [lambda: sys.meta_path.remove(guard)]


FEATURE = Feature(
    "gpu-packages",
    Level.REQUIRED,
    patches=(
        ProcessPatch(
            "gpu-packages.optional",
            "a GPU kernel package that cannot load must count as not installed",
            "import of transformer_engine, flash_attn, apex, ...",
            _install,
        ),
    ),
)
