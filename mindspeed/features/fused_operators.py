"""Puts this package's operators where Megatron has its own (level 1 and above)."""

from __future__ import annotations

from typing import Any

from mindspeed.features.base import Feature, Level
from mindspeed.patching import SymbolPatch


def _attention(original: Any) -> Any:
    from mindspeed.transformer.dot_product_attention import DotProductAttention

    return DotProductAttention


FEATURE = Feature(
    "fused-operators",
    Level.OPERATORS,
    patches=(
        SymbolPatch(
            "ops.attention",
            "the local attention writes all scores to memory and repeats grouped keys and values",
            "megatron.core.transformer.dot_product_attention:DotProductAttention",
            _attention,
        ),
    ),
)
