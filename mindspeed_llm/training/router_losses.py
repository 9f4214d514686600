"""The routers' losses of an iteration, for the log: they are no part of the reported loss."""

from __future__ import annotations

import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from megatron.core.transformer.transformer_config import TransformerConfig

from mindspeed.device import get_device

# Megatron's names, in its log as well.
_BALANCE = {"aux_loss": "load_balancing_loss", "seq_aux_loss": "seq_load_balancing_loss"}


def router_losses(config: TransformerConfig, num_microbatches: int) -> dict[str, float]:
    """Means over layers with experts and micro-batches, without their coefficients; then forget.

    A balance loss is 1 where all experts are visited alike. Every rank must call it.
    """
    names = _names(config)
    if not names:
        return {}
    tracker = get_moe_layer_wise_logging_tracker()
    total = torch.zeros(len(names), device=get_device().torch_device())
    for i, name in enumerate(names):
        # A pipeline stage without experts has nothing.
        if name in tracker:
            total[i] = tracker[name]["values"].sum()
    tracker.clear()
    # Each rank has its own layers, and its share of what is a mean over tokens.
    torch.distributed.all_reduce(total)
    layers = sum(config.moe_layer_freq) + (config.mtp_num_layers or 0)
    count = layers * num_microbatches * parallel_state.get_data_parallel_world_size()
    return dict(zip(names, (total / count).tolist(), strict=True))


def _names(config: TransformerConfig) -> list[str]:
    if config.num_moe_experts is None:
        return []
    names = []
    if config.moe_aux_loss_coeff and config.moe_router_load_balancing_type in _BALANCE:
        names.append(_BALANCE[config.moe_router_load_balancing_type])
    if config.moe_z_loss_coeff is not None:
        names.append("z_loss")
    return names
