"""Scaled dot-product attention with grouped queries, in Megatron's layout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mindspeed.ops.dispatch import Form, Op
from mindspeed.ops.soft_cap import soft_cap


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    causal: bool,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ) v.

    Args:
        query: [sq, b, heads, d]; key and value: [sk, b, groups, d], heads a multiple of groups;
            the value's d may be another.
        causal: query i sees keys up to i + sk - sq (the last query sees all: a key/value cache).
        mask: bool, broadcastable to [b, heads, sq, sk]; True means the key is hidden. A given
            mask stands alone: ``causal`` must then be False.
        dropout: probability of dropping an attention weight.
        window: a query sees this many keys back, its own included; only beside ``causal``.
        softcap: scores are soft-capped by this.

    Returns:
        [sq, b, heads · d] with the value's d.
    """
    if window is not None and causal and window < key.shape[0]:
        mask, causal = _window_mask(query.shape[0], key.shape[0], window, query.device), False
    if softcap is not None:
        # The fused forms have no place for it.
        return reference(query, key, value, scale, causal, mask, dropout, softcap)
    return _OP(query, key, value, scale, causal, mask, dropout)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    dropout: float,
    softcap: float | None = None,
) -> Tensor:
    """The formula, with the softmax in fp32 and keys and values repeated for each query head."""
    q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))  # [b, heads, s, d]
    repeats = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale
    if softcap is not None:
        scores = soft_cap(scores, softcap)
    hidden = _causal_mask(q.shape[2], k.shape[2], q.device) if causal else mask
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = functional.dropout(scores.softmax(-1).to(q.dtype), dropout)
    return _merge_heads(weights @ v)


def _causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    every = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return every.triu(diagonal=1 + keys - queries)


def _window_mask(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """Hidden: keys in the future, and those ``window`` or more positions back."""
    later = _causal_mask(queries, keys, device)
    every = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return later | every.tril(diagonal=keys - queries - window)


def _merge_heads(context: Tensor) -> Tensor:
    """[b, heads, s, d] -> [s, b, heads · d]."""
    batch, heads, sequence, width = context.shape
    return context.permute(2, 0, 1, 3).reshape(sequence, batch, heads * width)


def _sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
    dropout: float,
) -> Tensor:
    q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    if causal and q.shape[2] != k.shape[2]:
        # sdpa aligns its causal mask with the first key; a cache needs it aligned with the last.
        mask = None if q.shape[2] == 1 else _causal_mask(q.shape[2], k.shape[2], q.device)
        causal = False
    context = functional.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=None if mask is None else ~mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return _merge_heads(context)


_OP = Op("attention", [Form("sdpa", ("cpu", "cuda", "npu"), lambda: _sdpa)], reference)
