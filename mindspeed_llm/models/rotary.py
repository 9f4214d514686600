"""Megatron's rotary embedding with the frequencies of any :mod:`rope_scaling`."""

from __future__ import annotations

import math
from typing import Any

from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor

from mindspeed_llm.models.rope_scaling import Scaling


class ScaledRotaryEmbedding(RotaryEmbedding):
    """As Megatron's; frequencies are scaled for the length that is asked for.

    Args:
        scaling: how.
        **kwargs: as Megatron's ``RotaryEmbedding``.
    """

    def __init__(self, scaling: Scaling, rotary_base: float, **kwargs: Any) -> None:
        super().__init__(rotary_base=rotary_base, **kwargs)
        self._scaling, self._base = scaling, rotary_base
        self._plain: Tensor = self.inv_freq  # type: ignore[has-type]
        self.inv_freq = scaling.scale(self._plain, rotary_base, 0)

    def get_emb(self, max_seq_len: int, offset: int = 0) -> Tensor:
        """Angles ``[positions, 1, 1, rotary size]``."""
        self.inv_freq = self._scaling.scale(self._plain, self._base, max_seq_len + offset)
        return super().get_emb(max_seq_len, offset)


def set_concentration(config: Any, factor: float) -> None:
    """Have attention multiply cosine and sine by ``factor``.

    Megatron's hook for that reads YaRN's settings and takes 0.1 ln(scaling factor) + 1.
    """
    if factor != 1.0:
        config.yarn_rotary_scaling_factor = math.exp(10 * (factor - 1))
