"""Fills what Megatron-Core leaves open when TransformerEngine is not there, on every device."""

from __future__ import annotations

import warnings
from typing import Any

from mindspeed.features.base import Feature, Level
from mindspeed.patching import ProcessPatch, SymbolPatch, Undo


def _none_if_missing(original: Any) -> Any:
    return original


def _norm(original: Any) -> Any:
    from mindspeed.transformer.norm import Norm

    return Norm


def _silence() -> list[Undo]:
    """Megatron warns at import of what the start-up block states as a fact."""
    before = warnings.filters[:]
    warnings.filterwarnings("ignore", r".*Apex (is|are) not installed", UserWarning)
    warnings.filterwarnings("ignore", "full scope is deprecated", UserWarning, r"megatron\.core")

    def undo() -> None:
        warnings.filters[:] = before  # type: ignore[index]

    return [undo]


FEATURE = Feature(
    "no-transformer-engine",
    Level.REQUIRED,
    patches=(
        ProcessPatch(
            "no-te.warnings",
            "Megatron warns eight times that TransformerEngine and apex are missing",
            "warnings.filters",
            _silence,
        ),
        SymbolPatch(
            "no-te.general-gemm",
            "the MoE router tests a name that only exists with TransformerEngine (NameError)",
            "megatron.core.transformer.moe.moe_utils:te_general_gemm",
            _none_if_missing,
            may_be_missing=True,
        ),
        SymbolPatch(
            "no-te.norm",
            "Megatron's torch norm refuses sequence parallelism and zero-centered weights",
            "megatron.core.transformer.torch_norm:WrappedTorchNorm",
            _norm,
        ),
    ),
)
