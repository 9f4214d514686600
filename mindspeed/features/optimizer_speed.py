"""A faster optimizer step where TransformerEngine and apex are missing (level 2)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mindspeed.features.base import Feature, Level
from mindspeed.optimizer.adam import use_fused_adam
from mindspeed.optimizer.gradients import WeightGradient, scale_tensors
from mindspeed.patching import SymbolPatch

_LAYERS = "megatron.core.tensor_parallel.layers"


def _fused_adam(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_optimizer(*args: Any, **kwargs: Any) -> Any:
        megatron_optimizer = original(*args, **kwargs)
        use_fused_adam(getattr(megatron_optimizer, "optimizer", None))
        return megatron_optimizer

    return get_optimizer


def _weight_gradient(original: Any) -> Any:
    return original or WeightGradient


FEATURE = Feature(
    "optimizer-speed",
    Level.FULL,
    patches=(
        SymbolPatch(
            "optimizer.fused-adam",
            "torch's AdamW defaults to a loop of seven operators per parameter on a CPU",
            "megatron.core.optimizer:_get_megatron_optimizer_based_on_param_groups",
            _fused_adam,
            devices=("cpu", "cuda"),
        ),
        SymbolPatch(
            "optimizer.scale-in-place",
            "clipping copies every gradient once more",
            "megatron.core.utils:local_multi_tensor_scale",
            lambda original: scale_tensors,
        ),
        SymbolPatch(
            "optimizer.weight-gradient",
            "gradient_accumulation_fusion needs an apex kernel",
            f"{_LAYERS}:fused_weight_gradient_mlp_cuda",
            _weight_gradient,
            may_be_missing=True,
        ),
        SymbolPatch(
            "optimizer.weight-gradient-flag",
            "says that the kernel is there",
            f"{_LAYERS}:_grad_accum_fusion_available",
            lambda original: True,
        ),
    ),
)
