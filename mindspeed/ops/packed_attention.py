"""Causal attention over rows that hold several sequences, none of which sees another."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from mindspeed.ops import attention as whole
from mindspeed.ops.dispatch import Form, Op

LOOP = "by sequence"


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    dropout: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ) v within each sequence.

    No [s, s] mask is made: on a CPU each sequence is a call of its own, whose cost is that of its
    own length squared; a device's operator for variable lengths takes all of them at once.

    Args:
        query: [s, b, heads, d]; key and value: [s, b, groups, d], heads a multiple of groups;
            the value's d may be another.
        lengths: of the sequences of the first row, then of the second, ...; no sequence goes over
            the end of its row, so that they sum to b · s.
        dropout, window, softcap: as :func:`mindspeed.ops.attention.attention`.

    Returns:
        [s, b, heads · d] with the value's d.

    Raises:
        ValueError: lengths that do not sum to b · s.
    """
    length, rows = query.shape[:2]
    if sum(lengths) != length * rows:
        raise ValueError(
            f"{len(lengths)} sequences of {sum(lengths)} tokens in {rows} rows of {length}"
        )
    # [b · s, heads, d]: sequences lie one after the other.
    flat = (x.transpose(0, 1).flatten(0, 1) for x in (query, key, value))
    context = _OP(*flat, list(lengths), scale, dropout, window, softcap)
    return context.flatten(1).unflatten(0, (rows, length)).transpose(0, 1).contiguous()


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    scale: float,
    dropout: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """The formula over all tokens at once, under a mask: [t, heads, d] to [t, heads, d]."""
    owner = torch.repeat_interleave(
        torch.arange(len(lengths), device=query.device),
        torch.tensor(lengths, device=query.device),
    )
    tokens = torch.arange(len(owner), device=query.device)
    back = tokens[:, None] - tokens
    hidden = (owner[:, None] != owner) | (back < 0)
    if window is not None:
        hidden |= back >= window
    q, k, v = (x.unsqueeze(1) for x in (query, key, value))
    context = whole.reference(q, k, v, scale, False, hidden, dropout, softcap)
    return context.squeeze(1).unflatten(-1, (query.shape[1], value.shape[2]))


def by_sequence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    scale: float,
    dropout: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """One call of :func:`mindspeed.ops.attention.attention` for each sequence."""
    # Their gradients are put together once; those of slices would each be as large as the whole.
    parts = zip(*(x.unsqueeze(1).split(lengths) for x in (query, key, value)), strict=True)
    context = [
        whole.attention(
            q, k, v, scale=scale, causal=True, dropout=dropout, window=window, softcap=softcap
        )
        for q, k, v in parts
    ]
    return torch.cat(context).squeeze(1).unflatten(-1, (query.shape[1], value.shape[2]))


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    scale: float,
    dropout: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """torch's flash attention over variable lengths, where it has what is asked for."""
    from torch.nn.attention.varlen import varlen_attn

    half = query.dtype in (torch.float16, torch.bfloat16)
    alike = query.shape[-1] == value.shape[-1] and query.shape[-1] <= 256
    if dropout or softcap is not None or not (half and alike):
        return by_sequence(query, key, value, lengths, scale, dropout, window, softcap)
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=query.device)
    context = varlen_attn(
        query,
        key,
        value,
        ends,
        ends,
        max(lengths),
        max(lengths),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(context, Tensor)  # a tuple only where more is asked for
    return context


def _flash_usable() -> bool:
    """Whether torch has it, with grouped queries and windows."""
    if importlib.util.find_spec("torch.nn.attention.varlen") is None:
        return False
    import inspect

    from torch.nn.attention.varlen import varlen_attn

    return {"window_size", "enable_gqa"} <= inspect.signature(varlen_attn).parameters.keys()


def _npu() -> Callable[..., Tensor]:
    import torch_npu

    # Mode 3 aligns a causal mask with the last key, mode 4 is a band of it; both take this mask.
    corner = 2048
    masks: dict[torch.device, Tensor] = {}

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: list[int],
        scale: float,
        dropout: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        if softcap is not None or query.shape[-1] != value.shape[-1]:
            return by_sequence(query, key, value, lengths, scale, dropout, window, softcap)
        if query.device not in masks:
            every = torch.ones(corner, corner, dtype=torch.bool, device=query.device)
            masks[query.device] = every.triu(1)
        ends = list(accumulate(lengths))
        return torch_npu.npu_fusion_attention(
            query,
            key,
            value,
            query.shape[1],
            input_layout="TND",
            atten_mask=masks[query.device],
            scale=scale,
            keep_prob=1.0 - dropout,
            pre_tockens=2147483647 if window is None else window - 1,
            next_tockens=0,
            sparse_mode=3 if window is None else 4,
            actual_seq_qlen=ends,
            actual_seq_kvlen=ends,
        )[0]

    return attend


_OP = Op(
    "packed attention",
    [
        Form("flash over lengths", ("cuda",), lambda: _flash, _flash_usable),
        Form("torch_npu TND", ("npu",), _npu),
        Form(LOOP, ("cpu", "cuda", "npu"), lambda: by_sequence),
    ],
    reference,
)
