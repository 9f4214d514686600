"""One training iteration, and one evaluation, over Megatron's pipeline schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.utils import get_attr_wrapped_model
from torch import Tensor

from mindspeed_llm.training.objective import Batch, Batches, Objective, Passes
from mindspeed_llm.training.router_losses import router_losses


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
        metrics: further means that the objective reports, by name; on the last stage only.
        tokens, trained_tokens: of the global batch, all (padding included) and those in the loss;
            0 off the last pipeline stage.
        untrained: parts of the batch in which nothing is trained (``Objective.untrained``).
        not_finite: what was not finite, for which the update was left out; None where it was not
            looked for, or all was finite.
    """

    loss: float | None
    grad_norm: float | None
    num_zeros: int | None
    updated: bool
    further_losses: tuple[float, ...] = ()
    router_losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    trained_tokens: int = 0
    untrained: int = 0
    not_finite: str | None = None


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
    tokens = torch.full_like(count, mask.numel())
    report["tokens"] = torch.stack([tokens, count, (count == 0).float()])
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


class NextToken:
    """The loss of each next token that is trained: pretraining and SFT."""

    rows_per_sample = 1
    compute = 1.0
    untrained = "micro-batches"

    def prepare(self, batches: Batches, passes: Passes) -> Batches:
        """The batches as they are."""
        return batches

    def forward_step(
        self, batches: Iterator[Batch] | None, model: torch.nn.Module
    ) -> tuple[Any, Any]:
        """See :func:`forward_step`."""
        return forward_step(batches, model)


NEXT_TOKEN = NextToken()


def train_step(
    chunks: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    batches: Batches,
    *,
    num_microbatches: int,
    micro_batch_size: int,
    seq_length: int,
    objective: Objective = NEXT_TOKEN,
    skip_not_finite: bool = False,
) -> StepResult:
    """Gradients of one global batch, and the update.

    Args:
        batches: one iterator of micro-batches per model chunk.
        skip_not_finite: leave the update out where the loss or a gradient is not finite.
    """
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    passes = Passes(num_microbatches, micro_batch_size * objective.rows_per_sample, seq_length)
    reports = passes.run(
        objective.forward_step, chunks, objective.prepare(batches, passes), forward_only=False
    )
    sums = totals(reports)
    not_finite = find_not_finite(chunks, sums) if skip_not_finite else None
    updated, grad_norm, num_zeros = (False, None, None) if not_finite else optimizer.step()
    return StepResult(
        loss=sums.mean,
        grad_norm=None if grad_norm is None else float(grad_norm),
        num_zeros=num_zeros,
        updated=bool(updated),
        further_losses=tuple(further_means(reports)),
        router_losses=router_losses(chunks[0].config, num_microbatches),
        metrics=sums.metrics,
        tokens=sums.tokens,
        trained_tokens=sums.trained,
        untrained=sums.untrained,
        not_finite=not_finite,
    )


def find_not_finite(chunks: list[DistributedDataParallel], sums: Totals) -> str | None:
    """What is not finite in a step, on any rank: the loss, a gradient; None for nothing."""
    buffers = [
        buffer.grad_data
        for chunk in chunks
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)
    ]
    bad = torch.stack([~torch.isfinite(grads).all() for grads in buffers]).any().float()
    loss_bad = torch.full_like(bad, not math.isfinite(sums.loss))
    found = torch.stack([loss_bad, bad])
    torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
    names = [
        name for name, is_bad in zip(("loss", "gradient"), found.tolist(), strict=True) if is_bad
    ]
    return " and ".join(names) or None


def evaluate(
    chunks: list[DistributedDataParallel],
    batches: Batches,
    *,
    iterations: int,
    num_microbatches: int,
    micro_batch_size: int,
    seq_length: int,
    objective: Objective = NEXT_TOKEN,
) -> Totals:
    """Means over ``iterations`` global batches; of nothing off the last stage."""
    reports: list[dict[str, Tensor]] = []
    passes = Passes(num_microbatches, micro_batch_size * objective.rows_per_sample, seq_length)
    for chunk in chunks:
        chunk.eval()
    with torch.no_grad():
        for _ in range(iterations):
            prepared = objective.prepare(batches, passes)
            reports += passes.run(objective.forward_step, chunks, prepared, forward_only=True)
    for chunk in chunks:
        chunk.train()
    return totals(reports)


@dataclass(frozen=True)
class Totals:
    """Sums over all micro-batches and data-parallel ranks; all 0 off the last pipeline stage.

    Attributes:
        count: what ``loss`` is the sum of: trained tokens, or pairs.
        metrics: means of everything else that was reported.
    """

    loss: float = 0.0
    count: int = 0
    trained: int = 0
    tokens: int = 0
    untrained: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean loss, if there is any."""
        return self.loss / self.count if self.count else None


_OWN = ("lm loss", "tokens", "further losses")


def totals(reports: list[dict[str, Tensor]]) -> Totals:
    """Sum reports up; ``reports`` is empty on all pipeline stages but the last."""
    if not reports:
        return Totals()
    names = [name for name in reports[0] if name not in _OWN]
    parts = ["lm loss", "tokens", *names]
    loss, count, tokens, trained, untrained, *more = _summed(
        [torch.cat([report[name] for name in parts]) for report in reports]
    ).tolist()
    means = zip(names, more[::2], more[1::2], strict=True)
    metrics = {name: value / number for name, value, number in means if number}
    return Totals(loss, int(count), int(trained), int(tokens), int(untrained), metrics)


def further_means(reports: list[dict[str, Tensor]]) -> list[float]:
    """Means of the losses of tokens further ahead, one a layer; none if there are none."""
    found = [report["further losses"] for report in reports if "further losses" in report]
    if not found:
        return []
    return [value / count if count else float("nan") for value, count in _summed(found).tolist()]


def _summed(found: list[Tensor]) -> Tensor:
    total = torch.stack(found).sum(dim=0)
    torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group())
    return total
