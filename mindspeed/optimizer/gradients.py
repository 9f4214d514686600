"""Stand-ins for apex's kernels on gradients, with as few passes over memory as torch allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scale_tensors(
    chunk_size: int, noop_flag: Any, tensor_lists: list[list[Tensor]], scale: float
) -> None:
    """``amp_C.multi_tensor_scale``: targets = sources · scale; in place where they are the same."""
    for source, target in zip(*tensor_lists, strict=True):
        if source.data_ptr() == target.data_ptr() and source.dtype == target.dtype:
            target.mul_(scale)
        else:
            torch.mul(source, scale, out=target)


class WeightGradient:
    """``fused_weight_gradient_mlp_cuda``: adds a weight's gradient to its accumulation buffer.

    Inputs [..., in] and output gradients [..., out] give the gradient [out, in]. Where the dtypes
    agree the product is accumulated by the matrix product itself, without a temporary.
    """

    @staticmethod
    def accumulate(inputs: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
        """main_grad += grad_outputᵀ inputs."""
        inputs = inputs.reshape(-1, inputs.shape[-1])
        grad_output = grad_output.reshape(-1, grad_output.shape[-1])
        if main_grad.dtype == inputs.dtype:
            main_grad.addmm_(grad_output.t(), inputs)
        else:
            main_grad.add_(grad_output.t() @ inputs)

    wgrad_gemm_accum_fp32 = accumulate
    wgrad_gemm_accum_fp16 = accumulate
