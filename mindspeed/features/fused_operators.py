"""Puts this package's operators where Megatron has its own (level 1 and above)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from mindspeed.features.base import Feature, Level
from mindspeed.ops.cross_entropy import vocab_parallel_cross_entropy
from mindspeed.ops.rope import rope
from mindspeed.ops.swiglu import swiglu
from mindspeed.patching import SymbolPatch

_ROPE = "megatron.core.models.common.embeddings.rope_utils"


def _attention(original: Any) -> Any:
    from mindspeed.transformer.dot_product_attention import DotProductAttention

    return DotProductAttention


def _swiglu(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def bias_swiglu_impl(
        input: Tensor, bias: Tensor | None, fp8_input_store: bool = False, *args: Any, **kw: Any
    ) -> Tensor:
        if fp8_input_store:
            return original(input, bias, fp8_input_store, *args, **kw)
        return swiglu(input if bias is None else input + bias)

    return bias_swiglu_impl


def _rope(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def apply_rotary_pos_emb_bshd(
        t: Tensor,
        freqs: Tensor,
        rotary_interleaved: bool = False,
        multi_latent_attention: bool = False,
        mscale: float = 1.0,
    ) -> Tensor:
        if rotary_interleaved or multi_latent_attention:
            return original(t, freqs, rotary_interleaved, multi_latent_attention, mscale)
        return rope(t, freqs, mscale)

    return apply_rotary_pos_emb_bshd


def _fused_rope(original: Callable[..., Tensor] | None) -> Callable[..., Tensor]:
    def fused_apply_rotary_pos_emb(t: Tensor, freqs: Tensor, interleaved: bool = False) -> Tensor:
        if interleaved:
            raise ValueError("rotary_interleaved needs apply_rope_fusion=False")
        return rope(t, freqs)

    return original or fused_apply_rotary_pos_emb


def _cross_entropy(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def cross_entropy(
        vocab_parallel_logits: Tensor, target: Tensor, label_smoothing: float = 0.0
    ) -> Tensor:
        if label_smoothing:
            return original(vocab_parallel_logits, target, label_smoothing)
        from megatron.core import parallel_state

        group = parallel_state.get_tensor_model_parallel_group()
        return vocab_parallel_cross_entropy(vocab_parallel_logits, target, group)

    return cross_entropy


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
        SymbolPatch(
            "ops.swiglu",
            "Megatron's is written for a compiler to fuse",
            "megatron.core.fusions.fused_bias_swiglu:bias_swiglu_impl",
            _swiglu,
            devices=("cpu", "npu"),  # on CUDA the compiler does fuse it
        ),
        SymbolPatch(
            "ops.rope",
            "cosine and sine are computed anew for every layer",
            f"{_ROPE}:_apply_rotary_pos_emb_bshd",
            _rope,
        ),
        SymbolPatch(
            "ops.rope-fusion",
            "apply_rope_fusion, Megatron-LM's default, needs TransformerEngine's kernel",
            f"{_ROPE}:fused_apply_rotary_pos_emb",
            _fused_rope,
        ),
        SymbolPatch(
            "ops.cross-entropy",
            "several passes over fp32 logits of the whole batch",
            "megatron.core.tensor_parallel.cross_entropy:vocab_parallel_cross_entropy",
            _cross_entropy,
            devices=("cpu", "npu"),
        ),
    ),
)
