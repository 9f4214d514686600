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

Batch = dict[str, Any]
"""``tokens``, ``labels``, ``position_ids`` and ``loss_mask``, ``[b, s]``; ``packed``, a
:class:`~mindspeed.transformer.packed.PackedRows`, where rows hold samples apart from each other."""


@dataclass(frozen=True)
class StepResult:
    """What one iteration did.

    Attributes:
        loss: mean over the trained tokens of the global batch; None off the last pipeline stage,
            and if there is none.
        grad_norm: before clipping; None if the update was skipped.
        updated: whether the optimizer stepped (False after an fp16 overflow).
        further_losses: those of tokens further ahead, one for each layer of multi-token
            prediction; as ``loss``, mean and on the last pipeline stage only.
        router_losses: see :func:`mindspeed_llm.training.router_losses.router_losses`.
        tokens, trained_tokens: of the global batch, all (padding included) and those in the loss;
            0 off the last pipeline stage.
        empty_micro_batches: those without a trained token, which add nothing to loss and gradient.
    """

    loss: float | None
    grad_norm: float | None
    num_zeros: int | None
    updated: bool
    further_losses: tuple[float, ...] = ()
    router_losses: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    trained_tokens: int = 0
    empty_micro_batches: int = 0


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
    report["tokens"] = torch.stack([torch.full_like(count, mask.numel()), (count == 0).float()])
    if further is not None:
        report["further losses"] = further
    return total, count.to(torch.int), report


def forward_step(batches: Iterator[Batch] | None, model: torch.nn.Module) -> tuple[Any, Any]:
    """Megatron's forward step: the model's output, and the function that makes it a loss.

    Middle pipeline stages have no ``batches`` where they need nothing but what their neighbour
    sends; where rows hold several samples they do, and take their lengths from them.
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
        packed_seq_params=batch.get("packed"),
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
    sums = totals(reports)
    return StepResult(
        loss=sums.mean,
        grad_norm=None if grad_norm is None else float(grad_norm),
        num_zeros=num_zeros,
        updated=bool(updated),
        further_losses=tuple(means(reports, "further losses")),
        router_losses=router_losses(chunks[0].config, num_microbatches),
        tokens=sums.tokens,
        trained_tokens=sums.trained,
        empty_micro_batches=sums.empty,
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
    return totals(reports).mean


@dataclass(frozen=True)
class Totals:
    """Sums over all micro-batches and data-parallel ranks; all 0 off the last pipeline stage."""

    loss: float = 0.0
    trained: int = 0
    tokens: int = 0
    empty: int = 0

    @property
    def mean(self) -> float | None:
        """The mean loss of a trained token, if there is any."""
        return self.loss / self.trained if self.trained else None


def totals(reports: list[dict[str, Tensor]]) -> Totals:
    """Sum reports up; ``reports`` is empty on all pipeline stages but the last."""
    if not reports:
        return Totals()
    loss, trained, tokens, empty = _summed(
        [torch.cat([report["lm loss"], report["tokens"]]) for report in reports]
    ).tolist()
    return Totals(loss, int(trained), int(tokens), int(empty))


def means(reports: list[dict[str, Tensor]], name: str) -> list[float]:
    """Means of what reports hold as sums and numbers ``[n, 2]``; none if nothing."""
    found = [report[name] for report in reports if name in report]
    if not found:
        return []
    return [value / count if count else float("nan") for value, count in _summed(found).tolist()]


def _summed(found: list[Tensor]) -> Tensor:
    total = torch.stack(found).sum(dim=0)
    torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
    return total
