"""Mends resuming Megatron's distributed optimizer with torch's Adam in a fresh process.

Three faults of megatron-core 0.16 without TransformerEngine and apex: the state that the sharded
state dict describes does not exist before the first step (an assertion), "step" is asked for where
it was left out (KeyError), and all parameters are given one shared step tensor, so that Adam
advances it once per parameter (silent: the bias correction is wrong from the first step on).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mindspeed.features.base import Feature, Level
from mindspeed.patching import SymbolPatch

_CLASS = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"


def _is_torch_adam(optimizer: Any) -> bool:
    return isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW))


def create_adam_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter the state that Adam would create at its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if "step" not in state:
                on_device = group.get("fused") or group.get("capturable")
                device = parameter.device if on_device else torch.device("cpu")
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment not in state:
                    state[moment] = torch.zeros_like(parameter)


def _sharded_state_dict(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sharded_state_dict(
        self: Any, model_sharded_state_dict: Any, is_loading: bool = False, *args: Any, **kw: Any
    ) -> Any:
        if is_loading and _is_torch_adam(self.optimizer):
            create_adam_state(self.optimizer)
        return original(self, model_sharded_state_dict, is_loading, *args, **kw)

    return sharded_state_dict


def _set_states(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def set_main_param_and_optimizer_states(self: Any, model_param: Any, tensors: Any) -> None:
        if _is_torch_adam(self.optimizer) and "step" not in tensors:
            group, order = self.model_param_group_index_map[model_param]
            main_param = self.optimizer.param_groups[group]["params"][order]
            tensors = {**tensors, "step": self.optimizer.state[main_param]["step"]}
        original(self, model_param, tensors)

    return set_main_param_and_optimizer_states


def _load_state_dict(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any) -> None:
        original(self, state_dict)
        if _is_torch_adam(self.optimizer):
            for state in self.optimizer.state.values():
                state["step"] = state["step"].clone()

    return load_state_dict


FEATURE = Feature(
    "distributed-optimizer",
    Level.REQUIRED,
    patches=(
        SymbolPatch(
            "optimizer.state-before-load",
            "loading in a fresh process asserts that Adam has taken a step already",
            f"{_CLASS}.sharded_state_dict",
            _sharded_state_dict,
        ),
        SymbolPatch(
            "optimizer.step-when-setting",
            "a loaded parameter state leaves 'step' out, which is then a KeyError",
            f"{_CLASS}._set_main_param_and_optimizer_states",
            _set_states,
        ),
        SymbolPatch(
            "optimizer.own-step",
            "all parameters share one step tensor after loading: Adam advances it once for each",
            f"{_CLASS}.load_state_dict",
            _load_state_dict,
        ),
    ),
)
