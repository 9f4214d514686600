"""Gradients of experts whose matrices are shared by other ranks than those of the other layers."""

from __future__ import annotations

from megatron.core.process_groups_config import ProcessGroupCollection
from torch import nn


def reduce_as_experts(experts: nn.Module, groups: ProcessGroupCollection) -> None:
    """Have the gradients of ``experts`` summed over the expert data-parallel ranks.

    Megatron decides by the expert-parallel size alone, and sums over the other layers'
    data-parallel ranks where that is 1. Those are fewer where experts are not tensor parallel but
    other layers are: ranks of one tensor-parallel group then send different tokens to their copies.
    """
    if groups.ep.size() > 1 or groups.expt_tp.size() != groups.tp.size():
        for parameter in experts.parameters():
            parameter.allreduce = False  # type: ignore[attr-defined]
