"""Megatron's local layer specs with this package's norm and attention in them."""

from __future__ import annotations

from megatron.core.models.backends import LocalSpecProvider

from mindspeed.transformer.dot_product_attention import DotProductAttention
from mindspeed.transformer.norm import LayerNorm, RMSNorm


class MindSpeedSpecProvider(LocalSpecProvider):
    """What Megatron's spec builders ask a backend for; linear layers are Megatron's own."""

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        """The norm, which knows sequence parallelism."""
        return RMSNorm if rms_norm else LayerNorm

    def core_attention(self) -> type:
        """Attention through ``scaled_dot_product_attention``."""
        return DotProductAttention
