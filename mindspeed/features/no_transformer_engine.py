"""Fills what Megatron-Core leaves open when TransformerEngine is not there, on every device."""

from __future__ import annotations

from typing import Any

from mindspeed.features.base import Feature, Level
from mindspeed.patching import SymbolPatch


def _none_if_missing(original: Any) -> Any:
    return original


def _norm(original: Any) -> Any:
    from mindspeed.transformer.norm import Norm

    return Norm


FEATURE = Feature(
    "no-transformer-engine",
    Level.REQUIRED,
    patches=(
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
