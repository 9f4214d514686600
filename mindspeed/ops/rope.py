"""Rotary position embedding (arXiv:2104.09864) in the two-halves layout of Llama and Megatron."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mindspeed.ops.dispatch import Form, Op

_CACHE = "_mindspeed_cos_sin"


def rope(x: Tensor, angles: Tensor, scale: float = 1.0) -> Tensor:
    """Rotate the pairs (x[i], x[i + r/2]) of the first r features by their angles.

    Args:
        x: [s, b, heads, d].
        angles: [s, 1 or b, 1, r] with r ≤ d, both halves equal; features from r on pass.
        scale: factor on cosine and sine (YaRN's concentration).
    """
    cos, sin = _cos_sin(angles, x.dtype, scale)
    rotated = angles.shape[-1]
    if rotated == x.shape[-1]:
        return _OP(x, cos, sin)
    return torch.cat((_OP(x[..., :rotated], cos, sin), x[..., rotated:]), dim=-1)


def _cos_sin(angles: Tensor, dtype: torch.dtype, scale: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, kept on the angles: every layer and every step has the same ones."""
    kept = getattr(angles, _CACHE, None)
    # Tensors of inference mode count no versions; they are made anew at each step.
    version = None if angles.is_inference() else angles._version
    key = (version, dtype, scale)
    if kept is None or kept[0] != key or version is None:
        kept = (key, (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype))
        setattr(angles, _CACHE, kept)
    return kept[1], kept[2]


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class _Rope(torch.autograd.Function):
    """Adds the rotated halves in place; the backward pass is the rotation by the other sign."""

    @staticmethod
    def forward(ctx, x, cos, sin):  # type: ignore[override]
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, sin, -1), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    out = x * cos
    half = x.shape[-1] // 2
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out


def _npu() -> Callable[..., Tensor]:
    import torch_npu

    return torch_npu.npu_rotary_mul


_OP = Op(
    "rope",
    [
        Form("in place halves", ("cpu", "cuda"), lambda: _Rope.apply),
        Form("torch_npu", ("npu",), _npu),
    ],
    reference,
)
