"""What a run learns: the part of a step that differs between kinds of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func

Batch = dict[str, Any]
"""``tokens``, ``labels``, ``position_ids`` and ``loss_mask``, ``[b, s]``; ``packed``, a
:class:`~mindspeed.transformer.packed.PackedRows`, where rows hold samples apart from each other."""

Batches = list[Iterator[Batch] | None]
"""An iterator of micro-batches for each model chunk of this rank; None where it needs none."""


@dataclass(frozen=True)
class Passes:
    """How a global batch runs through the pipeline.

    Attributes:
        num_microbatches: of this data-parallel rank.
        rows: sequences of a micro-batch.
        seq_length: the greatest length of a row.
    """

    num_microbatches: int
    rows: int
    seq_length: int

    def run(
        self,
        forward_step: Callable[..., Any],
        chunks: list[Any],
        batches: Batches,
        **schedule: Any,
    ) -> list[Any]:
        """Run Megatron's schedule; what the loss functions report, on the last stage only."""
        single = len(chunks) == 1
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=batches[0] if single else batches,
            model=chunks[0] if single else chunks,
            num_microbatches=self.num_microbatches,
            seq_length=self.seq_length,
            micro_batch_size=self.rows,
            **schedule,
        )


class Objective(Protocol):
    """A loss, and what it needs to know of each global batch beforehand.

    The loss function that :meth:`forward_step` returns gives the sum of the losses, their number,
    by the total of which over all ranks gradients are divided, and a report: sums with their
    numbers, ``[2]`` each, by name. ``"lm loss"`` is the loss itself; ``"tokens"`` holds
    all tokens, the trained ones, and the parts of the batch in which nothing is trained.
    """

    rows_per_sample: int
    """Sequences that a sample brings into a micro-batch."""
    compute: float
    """Operations for each sequence, as multiples of a forward and a backward pass."""
    untrained: str
    """How the parts of a batch in which nothing is trained are called."""

    def prepare(self, batches: Batches, passes: Passes) -> Batches:
        """The micro-batches of one global batch, with what the loss needs beside them."""

    def forward_step(
        self, batches: Iterator[Batch] | None, model: torch.nn.Module
    ) -> tuple[Any, Any]:
        """Megatron's forward step: the model's output, and the function that makes it a loss."""
