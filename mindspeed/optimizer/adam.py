"""Torch's Adam in its fused form: one pass over parameter, gradient and moments.

Without TransformerEngine and apex, Megatron builds ``torch.optim.AdamW`` with torch's defaults,
which on a CPU is a loop of seven elementwise operators over every parameter.
"""

from __future__ import annotations

from typing import Any

import torch


def use_fused_adam(optimizer: Any) -> None:
    """Switch a ``torch.optim.Adam(W)`` to its fused form, now and after each load of a state.

    Anything else is left alone, and so is a parameter group whose user chose a form.
    """
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return
    if any(group.get("foreach") or group.get("capturable") for group in optimizer.param_groups):
        return
    _switch(optimizer)
    # A checkpoint brings the form that its own run used.
    optimizer.register_load_state_dict_post_hook(_switch)


def _switch(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if "step" in state:
                state["step"] = state["step"].to(parameter.device)
