"""Closes what mixtures of experts lack in megatron-core 0.16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mindspeed.features.base import Feature, Level
from mindspeed.patching import SymbolPatch

_ROUTER = "megatron.core.transformer.moe.router:TopKRouter"
_CPU = ("cpu",)


def _expert_gradients(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from mindspeed.moe.experts import reduce_as_experts

        original(self, *args, **kwargs)
        reduce_as_experts(self)

    return init


def _gather(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gather_along_first_dim(
        input_: Any, group: Any, output_split_sizes: Any = None, use_global_buffer: bool = False
    ) -> Any:
        from mindspeed.moe.collectives import gather_rows

        if output_split_sizes is None or group.size() == 1:
            return original(input_, group, output_split_sizes, use_global_buffer)
        return gather_rows(input_, output_split_sizes, group)

    return gather_along_first_dim


def _balance_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def attach_and_log_load_balancing_loss(
        self: Any, activation: Any, *args: Any, valid_token_count: Any = None, **kwargs: Any
    ) -> Any:
        from mindspeed.moe.balance import tokens_of_all_ranks

        count = activation.shape[0] if valid_token_count is None else valid_token_count
        count = tokens_of_all_ranks(self, count)
        return original(self, activation, *args, valid_token_count=count, **kwargs)

    return attach_and_log_load_balancing_loss


def _z_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, logits: Any, padding_mask: Any = None) -> Any:
        from mindspeed.moe.balance import apply_z_loss

        return apply_z_loss(self, logits, padding_mask)

    return apply


FEATURE = Feature(
    "moe",
    Level.REQUIRED,
    patches=(
        SymbolPatch(
            "moe.expert-gradients",
            "gradients of experts that are not tensor parallel beside layers that are, without "
            "expert parallelism, are not summed over the tensor-parallel ranks",
            "megatron.core.transformer.moe.experts:SequentialMLP.__init__",
            _expert_gradients,
        ),
        SymbolPatch(
            "moe.balance-loss-tokens",
            "with calculate_per_token_loss the balance loss weighs less the more ranks share a "
            "sequence",
            f"{_ROUTER}.attach_and_log_load_balancing_loss",
            _balance_loss,
        ),
        SymbolPatch(
            "moe.z-loss-tokens",
            "so does the z loss",
            f"{_ROUTER}.apply_z_loss",
            _z_loss,
        ),
        SymbolPatch(
            "moe.uneven-gather",
            "the alltoall dispatcher gathers different numbers of tokens, which gloo refuses",
            "megatron.core.tensor_parallel.mappings:_gather_along_first_dim",
            _gather,
            devices=_CPU,
        ),
    ),
)
