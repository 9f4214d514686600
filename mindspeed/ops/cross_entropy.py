"""Cross entropy of logits whose vocabulary is split over a tensor-parallel group.

The fast form reads and writes the logits once: a block of rows is widened to fp32 while it is in
the cache, and only exp(x - max) is kept, in the dtype of the logits. The backward pass scales it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from mindspeed.ops.dispatch import Form, Op

_BLOCK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26, "npu": 1 << 26}
"""Elements widened to fp32 at a time: on a CPU about what its caches hold."""


def vocab_parallel_cross_entropy(
    logits: Tensor, labels: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Per-token cross entropy.

    Args:
        logits: [..., V / tp], this rank's columns.
        labels: [...], over the whole vocabulary. One that is no column gives a loss without its
            own logit, as in Megatron.
        group: the tensor-parallel group; None if the vocabulary is not split.

    Returns:
        The losses [...], fp32 (fp64 for fp64 logits).
    """
    size, rank = (group.size(), group.rank()) if group is not None else (1, 0)
    columns = logits.shape[-1]
    loss = _OP(
        logits.reshape(-1, columns),
        labels.reshape(-1) - rank * columns,
        group if size > 1 else None,
    )
    return loss.view(labels.shape)


def reference(logits: Tensor, labels: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """log Σ exp(x) - x[label] in fp32; logits [tokens, V / tp], labels from this rank's first."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    maximum = wide.detach().amax(-1)
    here = (labels >= 0) & (labels < logits.shape[-1])
    own = wide.gather(1, torch.where(here, labels, 0).unsqueeze(1)).squeeze(1)
    own = torch.where(here, own, 0)
    if group is None:
        return (wide - maximum.unsqueeze(1)).exp().sum(-1).log() + maximum - own
    from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region

    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    total = (wide - maximum.unsqueeze(1)).exp().sum(-1)
    total, own = (
        reduce_from_tensor_model_parallel_region(part, group=group) for part in (total, own)
    )
    return total.log() + maximum - own


def exponentiate(x: Tensor, labels: Tensor, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Replace x [tokens, V] by exp(x - max) of its rows, or by its softmax.

    Args:
        labels: [tokens], columns of x.
        normalise: divide by the sum (fp16 cannot hold the sums' small reciprocals as factors).

    Returns:
        Per row, in fp32: log Σ exp(x); x at the label; log of the factor that was divided out, so
        that x.new · exp(factor) = exp(x).
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    log_total, own, factor = (x.new_empty(x.shape[0], dtype=wide) for _ in range(3))
    if x.shape[1] == 0:  # this rank has only rows that pad the vocabulary
        return log_total.fill_(float("-inf")), own.zero_(), factor.fill_(float("-inf"))
    for rows in row_blocks(x):
        block = x[rows].to(wide)  # x itself if it is wide already
        torch.gather(block, 1, labels[rows].unsqueeze(1), out=own[rows].unsqueeze(1))
        maximum = block.amax(1)
        total = block.sub_(maximum.unsqueeze(1)).exp_().sum(1)
        torch.add(maximum, total.log(), out=log_total[rows])
        if normalise:
            block.div_(total.unsqueeze(1))
        factor[rows] = log_total[rows] if normalise else maximum
        if x.dtype != wide:
            x[rows] = block
    return log_total, own, factor


def row_blocks(x: Tensor) -> list[slice]:
    """Slices of rows that are small enough to be widened at a time."""
    rows = max(_BLOCK_ELEMENTS[x.device.type] // max(x.shape[1], 1), 1)
    return [slice(i, i + rows) for i in range(0, x.shape[0], rows)]


def combine(log_total: Tensor, own: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """From one rank's sums to those of the whole vocabulary.

    ``own`` becomes the label's logit, whichever rank holds it; the result is log Σ exp(x).
    """
    if group is None:
        return log_total
    maximum = log_total.clone()
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
    sums = torch.stack(((log_total - maximum).exp(), own))
    dist.all_reduce(sums, group=group)
    own.copy_(sums[1])
    return maximum + sums[0].log()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, group):  # type: ignore[override]
        here = (labels >= 0) & (labels < logits.shape[1])
        labels = torch.where(here, labels, 0)
        values = logits.clone()
        log_total, own, factor = exponentiate(values, labels, logits.dtype == torch.float16)
        own.mul_(here)
        log_total = combine(log_total, own, group)
        ctx.save_for_backward(values, labels, here, (factor - log_total).exp())
        return log_total - own

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        values, labels, here, scale = ctx.saved_tensors
        grad_logits = values * (grad * scale).unsqueeze(1).to(values.dtype)
        at_label = (grad * here).to(values.dtype)
        grad_logits.scatter_add_(1, labels.unsqueeze(1), -at_label.unsqueeze(1))
        return grad_logits, None, None


_OP = Op(
    "vocab_parallel_cross_entropy",
    [Form("one pass", ("cpu", "cuda", "npu"), lambda: _CrossEntropy.apply)],
    reference,
)
