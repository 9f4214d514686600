"""Gradients and optimizer state of experts, which other ranks share than the other layers."""

from __future__ import annotations

from torch import nn


def reduce_as_experts(experts: nn.Module) -> None:
    """Have the gradients of ``experts`` summed over the expert data-parallel ranks.

    Megatron does so only with expert parallelism, and otherwise sums over the data-parallel ranks
    of the other layers. Those are too few where experts are not tensor parallel but other layers
    are: ranks of one tensor-parallel group then send different tokens to their copies. Where both
    are the same ranks, experts still have an optimizer of their own at every layout, so that a
    checkpoint's optimizer state has the same names whatever layout wrote it.
    """
    for parameter in experts.parameters():
        parameter.allreduce = False  # type: ignore[attr-defined]
