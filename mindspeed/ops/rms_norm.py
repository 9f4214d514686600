"""RMS normalisation over the last dimension (arXiv:1910.07467).

The form for CPUs keeps one number per row for the backward pass, which then takes five passes over
memory where autograd of the formula takes twelve.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mindspeed.ops.dispatch import Form, Op, importable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight.

    Args:
        x: [..., h]; weight: [h]; both of one dtype. The statistics are fp32 (fp64 for fp64).
    """
    return _OP(x, weight, eps)


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The formula: statistics in fp32, rounded to x's dtype before the weight, as in Llama."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):  # type: ignore[override]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        # With n = x · scale and the row mean m = mean(grad · weight · n):
        # dx = scale · (grad · weight - n · m), dweight = Σ grad · n.
        x, weight, scale = ctx.saved_tensors
        width = x.shape[-1]
        normed = x * scale
        product = (grad * normed).reshape(-1, width)
        mean = torch.mv(product, weight.to(product.dtype)).div_(-width).view(scale.shape)
        grad_x = (grad * scale).mul_(weight).addcmul_(normed, mean.mul_(scale))
        return grad_x.to(x.dtype), product.sum(0).to(weight.dtype), None


def _torch() -> Callable[..., Tensor]:
    def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    return fused


def _liger() -> Callable[..., Tensor]:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # offset 0, statistics in fp32 as Llama's, the gradient not written over its input
        return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)

    return fused


def _npu() -> Callable[..., Tensor]:
    import torch_npu

    return lambda x, weight, eps: torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]


_OP = Op(
    "rms_norm",
    [
        Form("few passes", ("cpu",), lambda: _RmsNorm.apply),
        Form("torch_npu", ("npu",), _npu),
        Form("liger", ("cuda",), _liger, importable("liger_kernel")),
        Form("torch", ("cuda",), _torch),
    ],
    reference,
)
