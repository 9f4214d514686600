"""Preferences as an objective of training, at any layout.

The frozen reference sees the micro-batches of a global batch first, in a forward pass over the same
pipeline; its log probabilities wait beside the batches for the policy's pass on the last stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from mindspeed_llm.posttrain.preference import Answers, PreferenceLoss
from mindspeed_llm.training.objective import Batch, Batches, Passes


@dataclass(frozen=True)
class Reference:
    """The model that the policy is held to.

    Attributes:
        chunks: its modules on this rank.
        as_reference: entered while it runs (where it is the policy itself, without its adapters).
    """

    chunks: list[torch.nn.Module]
    as_reference: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)

    def answers(self, batches: Batches, passes: Passes) -> list[Answers]:
        """Log probabilities of each micro-batch; none off the last pipeline stage."""
        training = [chunk.training for chunk in self.chunks]
        for chunk in self.chunks:
            chunk.eval()
        with torch.no_grad(), self.as_reference():
            found = passes.run(
                _answers_step, self.chunks, batches, forward_only=True, collect_non_loss_data=True
            )
        for chunk, was_training in zip(self.chunks, training, strict=True):
            chunk.train(was_training)
        return found


@dataclass(frozen=True)
class Preferences:
    """Pairs of answers, learnt relative to a reference; an ``Objective`` of training.

    Attributes:
        weight: factor of losses and their number alike. Losses of experts' routers are sums over
            tokens; the tokens that a pair has at most make theirs of the same kind.
    """

    loss: PreferenceLoss
    reference: Reference
    weight: int = 1
    rows_per_sample = 2
    compute = 4 / 3
    untrained = "pairs"

    def prepare(self, batches: Batches, passes: Passes) -> Batches:
        """The micro-batches, on the last stage with the reference's :class:`Answers`."""
        kept = [
            None if one is None else list(islice(one, passes.num_microbatches)) for one in batches
        ]
        answers = self.reference.answers(_iterators(kept), passes)
        if answers:
            # The chunk with the output layer is the last one.
            assert kept[-1] is not None
            kept[-1] = [
                {**batch, "reference": found}
                for batch, found in zip(kept[-1], answers, strict=True)
            ]
        return _iterators(kept)

    def forward_step(
        self, batches: Iterator[Batch] | None, model: torch.nn.Module
    ) -> tuple[Any, Any]:
        """Per-token losses, and the function that makes them one of pairs."""
        losses, batch = _token_losses(batches, model)
        return losses, partial(self._loss_of_batch, batch)

    def _loss_of_batch(
        self, batch: Batch | None, losses: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        assert batch is not None
        mask = batch["loss_mask"]
        policy = Answers.of(losses, mask)
        of_pairs, logged = self.loss(policy, batch["reference"])
        # A pair of which one answer has no trained token (it was cut off) says nothing.
        whole = ((policy.chosen_tokens > 0) & (policy.rejected_tokens > 0)).float()
        total, count = (of_pairs * whole).sum(), whole.sum()
        report = {
            name: torch.stack([(values * whole).sum(), count]) for name, values in logged.items()
        }
        report["lm loss"] = torch.stack([total.detach(), count])
        tokens = torch.full_like(count, mask.numel())
        report["tokens"] = torch.stack([tokens, mask.sum().float(), whole.numel() - count])
        return total * self.weight, (count * self.weight).to(torch.int), report


def _iterators(kept: list[list[Batch] | None]) -> Batches:
    return [None if batches is None else iter(batches) for batches in kept]


def _token_losses(
    batches: Iterator[Batch] | None, model: torch.nn.Module
) -> tuple[Tensor, Batch | None]:
    if batches is None:
        return model(None, None, None), None
    batch = next(batches)
    losses = model(
        batch["tokens"], batch["position_ids"], attention_mask=None, labels=batch["labels"]
    )
    return losses, batch


def _answers_step(batches: Iterator[Batch] | None, model: torch.nn.Module) -> tuple[Any, Any]:
    losses, batch = _token_losses(batches, model)

    def collect(losses: Tensor, non_loss_data: bool) -> Answers:
        assert non_loss_data and batch is not None
        return Answers.of(losses, batch["loss_mask"])

    return losses, collect
