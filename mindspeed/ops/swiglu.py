"""SwiGLU: silu of one half of the features, times the other half (arXiv:2002.05202)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from mindspeed.ops.dispatch import Form, Op, importable


def swiglu(x: Tensor) -> Tensor:
    """silu(x[..., :f]) · x[..., f:] of x [..., 2f]."""
    return _OP(x)


def reference(x: Tensor) -> Tensor:
    """The formula."""
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


class _Swiglu(torch.autograd.Function):
    """Writes both halves of the gradient where they belong, without joining them afterwards."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[override]
        gate, up = x.chunk(2, dim=-1)
        activated = functional.silu(gate)
        ctx.save_for_backward(x, activated)
        return activated * up

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        x, activated = ctx.saved_tensors
        gate, up = x.chunk(2, dim=-1)
        grad_x = torch.empty_like(x)
        grad_gate, grad_up = grad_x.chunk(2, dim=-1)
        torch.mul(grad, activated, out=grad_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=grad_gate)
        return grad_x


def _liger() -> Callable[[Tensor], Tensor]:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    def fused(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return LigerSiLUMulFunction.apply(gate.contiguous(), up.contiguous())

    return fused


def _npu() -> Callable[[Tensor], Tensor]:
    import torch_npu

    return lambda x: torch_npu.npu_swiglu(x, dim=-1)


_OP = Op(
    "swiglu",
    [
        Form("liger", ("cuda",), _liger, importable("liger_kernel")),
        Form("in place halves", ("cpu", "cuda"), lambda: _Swiglu.apply),
        Form("torch_npu", ("npu",), _npu),
    ],
    reference,
)
