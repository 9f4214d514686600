"""The features of the adaptor, in the order in which their patches are applied."""

from __future__ import annotations

from mindspeed.features import (
    checkout,
    cpu,
    distributed_optimizer,
    fused_operators,
    gpu_packages,
    host_memory,
    latent_attention,
    moe,
    no_transformer_engine,
    npu,
    optimizer_speed,
)
from mindspeed.features.base import Feature, Level

__all__ = ["FEATURES", "Feature", "Level"]

FEATURES: tuple[Feature, ...] = (
    gpu_packages.FEATURE,
    npu.FEATURE,
    cpu.FEATURE,
    checkout.FEATURE,
    no_transformer_engine.FEATURE,
    moe.FEATURE,
    latent_attention.FEATURE,
    distributed_optimizer.FEATURE,
    fused_operators.FEATURE,
    optimizer_speed.FEATURE,
    host_memory.FEATURE,
)
