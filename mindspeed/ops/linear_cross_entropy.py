"""The output layer and its cross entropy in one operator, vocabulary-parallel.

The logits exist once, in the dtype of the model, and are overwritten by their exponentials; fp32
exists for a few rows at a time. The backward pass needs no further pass over them: with
e = exp(x - max), s = Σ e and g the gradient of a token's loss,

    d hidden = (g/s) · (e W)  - g · W[label]      d W = eᵀ ((g/s) · hidden)  - (g · hidden at label)

so that scales are applied to [tokens, h] and the -1 at the label is a sparse correction. Above
``KEEP_BYTES`` the exponentials are not kept but computed again, in chunks of tokens.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mindspeed.ops.cross_entropy import combine, exponentiate, row_blocks
from mindspeed.ops.cross_entropy import reference as cross_entropy
from mindspeed.ops.dispatch import Form, Op
from mindspeed.ops.soft_cap import soft_cap

KEEP_BYTES = 1 << 30
"""Exponentials up to this size are kept for the backward pass; larger ones are recomputed."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    vocab_size: int | None = None,
    tp_group: dist.ProcessGroup | None = None,
    sequence_parallel: bool = False,
    softcap: float | None = None,
) -> Tensor:
    """Per-token cross entropy of the output layer.

    Args:
        hidden: [s, b, h]; with ``sequence_parallel`` this rank's part of s.
        weight: [V / tp, h], this rank's rows of the output layer.
        labels: [b, s]; a label that is no row of the vocabulary gives a loss without its own
            logit, as in Megatron, to be masked by the caller.
        vocab_size: how many rows of the whole vocabulary are real; the others, which only pad it,
            take no part in the softmax.
        tp_group: the tensor-parallel group that the vocabulary is split over.
        softcap: logits are soft-capped by this.

    Returns:
        The loss of each token [b, s], fp32 (fp64 for fp64 inputs).
    """
    size, rank = (tp_group.size(), tp_group.rank()) if tp_group is not None else (1, 0)
    group = tp_group if size > 1 else None
    if group is not None:
        hidden = _to_vocabulary_parallel(hidden, sequence_parallel, group)
    sequence, batch, width = hidden.shape
    start = rank * weight.shape[0]
    valid = weight.shape[0] if vocab_size is None else vocab_size - start
    arguments = (
        hidden.reshape(sequence * batch, width),
        weight,
        labels.t().reshape(-1) - start,
        min(max(valid, 0), weight.shape[0]),
        group,
    )
    loss = _OP(*arguments) if softcap is None else _capped(*arguments, softcap)
    return loss.view(sequence, batch).t().contiguous()


def _to_vocabulary_parallel(hidden: Tensor, gather: bool, group: dist.ProcessGroup) -> Tensor:
    from megatron.core.tensor_parallel import mappings

    if gather:
        return mappings.gather_from_sequence_parallel_region(hidden, group=group)
    return mappings.copy_to_tensor_model_parallel_region(hidden, group=group)


def reference(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    valid: int,
    group: dist.ProcessGroup | None,
    softcap: float | None = None,
) -> Tensor:
    """Logits [tokens, V / tp], widened to fp32, then the (vocabulary-parallel) cross entropy.

    ``labels`` count from this rank's first row, ``valid`` is the number of real rows on this rank.
    """
    logits = torch.nn.functional.linear(hidden, weight)
    if softcap is not None:
        logits = soft_cap(logits.to(torch.promote_types(logits.dtype, torch.float32)), softcap)
    if valid < weight.shape[0]:
        padding = torch.arange(weight.shape[0], device=weight.device) >= valid
        logits = logits.masked_fill(padding, float("-inf"))
    return cross_entropy(logits, labels, group)


def _capped(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    valid: int,
    group: dist.ProcessGroup | None,
    softcap: float,
) -> Tensor:
    """The formula, a chunk of tokens at a time, computed again in the backward pass.

    The cap's derivative needs the logits themselves, which the form below does not keep.
    """
    chunk = max(KEEP_BYTES // 8 // max(4 * weight.shape[0], 1), 1)
    parts = zip(hidden.split(chunk), labels.split(chunk), strict=True)
    losses = [
        checkpoint(reference, part, weight, own, valid, group, softcap, use_reentrant=False)
        for part, own in parts
    ]
    return torch.cat(losses)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, valid, group):  # type: ignore[override]
        tokens, rows = hidden.shape[0], weight[:valid]
        here = (labels >= 0) & (labels < valid)
        labels = torch.where(here, labels, 0)
        needs_grad = any(ctx.needs_input_grad)
        chunk = _chunk_tokens(tokens, valid, hidden.element_size())
        sums = []
        for i in range(0, tokens, chunk):
            part = slice(i, i + chunk)
            values = hidden[part] @ rows.t()
            sums.append(exponentiate(values, labels[part], hidden.dtype == torch.float16))
        log_total, own, factor = (torch.cat(part) for part in zip(*sums, strict=True))
        own.mul_(here)
        log_total = combine(log_total, own, group)
        if needs_grad:
            ctx.valid, ctx.chunk, ctx.kept = valid, chunk, chunk >= tokens
            # values · scale is the softmax over the whole vocabulary.
            scale = (factor - log_total).exp() if ctx.kept else torch.ones_like(log_total)
            saved = values if ctx.kept else log_total
            ctx.save_for_backward(hidden, weight, labels, here, scale, saved)
        return log_total - own

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        hidden, weight, labels, here, scale, saved = ctx.saved_tensors
        scaled = (grad * scale).unsqueeze(1)
        at_label = (grad * here).unsqueeze(1)
        compute = _from_kept if ctx.kept else _recompute
        grad_hidden, grad_weight = compute(
            saved, hidden, weight[: ctx.valid], (hidden * scaled).to(hidden.dtype), ctx.chunk
        )
        grad_hidden *= scaled.to(hidden.dtype)
        grad_hidden -= weight[labels] * at_label.to(weight.dtype)
        if ctx.valid < weight.shape[0]:
            grad_weight = torch.nn.functional.pad(
                grad_weight, (0, 0, 0, weight.shape[0] - ctx.valid)
            )
        grad_weight.index_add_(0, labels, (hidden * at_label).to(weight.dtype), alpha=-1)
        return grad_hidden, grad_weight, None, None, None


def _from_kept(
    values: Tensor, hidden: Tensor, rows: Tensor, scaled_hidden: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """values W and valuesᵀ (scaled hidden)."""
    return values @ rows, values.t() @ scaled_hidden


def _recompute(
    log_total: Tensor, hidden: Tensor, rows: Tensor, scaled_hidden: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same from the logits, made again for a chunk of tokens at a time."""
    grad_hidden = torch.empty_like(hidden)
    # bf16 would lose the small contributions of the later chunks.
    grad_weight = rows.new_zeros(rows.shape, dtype=log_total.dtype)
    for i in range(0, hidden.shape[0], chunk):
        part = slice(i, i + chunk)
        values = hidden[part] @ rows.t()
        for block in row_blocks(values):
            exponent = values[block] - log_total[part][block].unsqueeze(1)
            values[block] = exponent.exp_()
        torch.mm(values, rows, out=grad_hidden[part])
        grad_weight += values.t() @ scaled_hidden[part]
    return grad_hidden, grad_weight.to(rows.dtype)


def _chunk_tokens(tokens: int, columns: int, element_size: int) -> int:
    """How many tokens are handled at a time: all, if their logits are small enough to keep."""
    row = max(columns * element_size, 1)
    return tokens if tokens * row <= KEEP_BYTES else max(KEEP_BYTES // 8 // row, 1)


_OP = Op(
    "linear_cross_entropy",
    [Form("chunked", ("cpu", "cuda", "npu"), lambda: _LinearCrossEntropy.apply)],
    reference,
)
