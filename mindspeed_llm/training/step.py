"""One training iteration, and one evaluation, over Megatron's pipeline schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_attr_wrapped_model
from torch import Tensor

from mindspeed_llm.training.router_losses import router_losses

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class StepResult:
    """What one iteration did.

    Attributes:
        loss: mean over the tokens of the global batch; None off the last pipeline stage.
        grad_norm: before clipping; None if the update was skipped.
        updated: whether the optimizer stepped (False after an fp16 overflow).
        further_losses: those of tokens further ahead, one for each layer of multi-token
            prediction; as ``loss``, mean and on the last pipeline stage only.
        router_losses: see :func:`mindspeed_llm.training.router_losses.router_losses`.
    """

    loss: float | None
    grad_norm: float | None
    num_zeros: int | None
    updated: bool
    further_losses: tuple[float, ...] = ()
    router_losses: dict[str, float] = field(default_factory=dict)


def loss_of_batch(
    loss_mask: Tensor, losses: Tensor, further: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sum of the trained tokens' losses, and their number.

    Args:
        loss_mask: ``[b, s]``, 1 for a token that is trained on.
        losses: per-token losses ``[b, s]``.
        further: sums and numbers ``[layers, 2]`` of the losses of tokens further ahead; their
            gradients come with that of ``losses``, so they are only reported.
    """
    mask = loss_mask.float()
    total = torch.sum(losses.float() * mask)
    count = mask.sum()
    report = {"lm loss": torch.stack([total.detach(), count])}
    if further is not None:
        report["further losses"] = further
    return total, count.to(torch.int), report


def forward_step(batches: Iterator[Batch] | None, model: torch.nn.Module) -> tuple[Any, Any]:
    """Megatron's forward step: the model's output, and the function that makes it a loss.

    Middle pipeline stages have no ``batches``; what they compute on comes from their neighbour.
    """
    if batches is None:
        return model(None, None, None), None
    batch = next(batches)
    losses = model(
        batch["tokens"],
        batch["position_ids"],
        attention_mask=None,
        labels=batch["labels"],
        loss_mask=batch["loss_mask"],
    )
    return losses, partial(loss_of_batch, batch["loss_mask"], further=further_losses(model))


def further_losses(model: torch.nn.Module) -> Tensor | None:
    """:attr:`mindspeed_llm.models.gpt.GPTModel.further_losses` of a model in its wrappers."""
    return get_attr_wrapped_model(model, "further_losses")


def train_step(
    chunks: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    batches: list[Iterator[Batch] | None],
    *,
    num_microbatches: int,
    micro_batch_size: int,
    seq_length: int,
) -> StepResult:
    """Gradients of one global batch, and the update.

    Args:
        batches: one iterator of micro-batches per model chunk.
    """
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    reports = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=batches if len(chunks) > 1 else batches[0],
        model=chunks if len(chunks) > 1 else chunks[0],
        num_microbatches=num_microbatches,
        seq_length=seq_length,
        micro_batch_size=micro_batch_size,
        forward_only=False,
    )
    updated, grad_norm, num_zeros = optimizer.step()
    return StepResult(
        loss=mean_loss(reports),
        grad_norm=None if grad_norm is None else float(grad_norm),
        num_zeros=num_zeros,
        updated=bool(updated),
        further_losses=tuple(means(reports, "further losses")),
        router_losses=router_losses(chunks[0].config, num_microbatches),
    )


def evaluate(
    chunks: list[DistributedDataParallel],
    batches: list[Iterator[Batch] | None],
    *,
    iterations: int,
    num_microbatches: int,
    micro_batch_size: int,
    seq_length: int,
) -> float | None:
    """Mean loss per token over ``iterations`` global batches; None off the last stage."""
    reports: list[dict[str, Tensor]] = []
    for chunk in chunks:
        chunk.eval()
    with torch.no_grad():
        for _ in range(iterations):
            reports += get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=batches if len(chunks) > 1 else batches[0],
                model=chunks if len(chunks) > 1 else chunks[0],
                num_microbatches=num_microbatches,
                seq_length=seq_length,
                micro_batch_size=micro_batch_size,
                forward_only=True,
            )
    for chunk in chunks:
        chunk.train()
    return mean_loss(reports)


def mean_loss(reports: list[dict[str, Tensor]]) -> float | None:
    """Mean over all tokens of all micro-batches and data-parallel ranks.

    ``reports`` is empty on all pipeline stages but the last, which then get None.
    """
    return next(iter(means(reports, "lm loss")), None)


def means(reports: list[dict[str, Tensor]], name: str) -> list[float]:
    """Means of what reports hold as sums and numbers, ``[2]`` or ``[n, 2]``; none if nothing."""
    found = [report[name] for report in reports if name in report]
    if not found:
        return []
    total = torch.stack(found).sum(dim=0).view(-1, 2)
    torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
    return [value / count if count else float("nan") for value, count in total.tolist()]
