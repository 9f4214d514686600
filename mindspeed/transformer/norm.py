"""RMSNorm and LayerNorm with Megatron's constructor, aware of sequence parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from mindspeed.ops.rms_norm import rms_norm

if TYPE_CHECKING:
    from megatron.core.transformer import TransformerConfig


class _Norm(nn.Module):
    """What both norms share: a weight over the last dimension and its tags.

    Args:
        config: gives the dtype, ``sequence_parallel`` (the gradient of the weight is then summed
            over the tensor-parallel group by Megatron) and ``layernorm_zero_centered_gamma``
            (the scale is 1 + weight).
        hidden_size: size of the last dimension.
        eps: added to the variance.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.normalized_shape = (hidden_size,)
        self.zero_centered = config.layernorm_zero_centered_gamma
        self.weight = self._parameter(config, 0.0 if self.zero_centered else 1.0)

    def _parameter(self, config: TransformerConfig, value: float) -> nn.Parameter:
        parameter = nn.Parameter(
            torch.full(self.normalized_shape, value, dtype=config.params_dtype)
        )
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return parameter

    def scale(self) -> torch.Tensor:
        """The factor applied after normalisation."""
        return self.weight + 1 if self.zero_centered else self.weight

    def extra_repr(self) -> str:
        return f"{self.normalized_shape[0]}, eps={self.eps}"


class RMSNorm(_Norm):
    """x / sqrt(mean(x²) + eps) · weight, in fp32 inside (arXiv:1910.07467)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.scale(), self.eps)


class LayerNorm(_Norm):
    """Layer normalisation with weight and bias."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(config, hidden_size, eps)
        self.bias = self._parameter(config, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.scale(), self.bias, self.eps)


class Norm:
    """Builds the norm that ``config.normalization`` names, for specs that leave the choice open.

    Raises:
        ValueError: the normalization is neither "RMSNorm" nor "LayerNorm".
    """

    def __new__(  # type: ignore[misc]
        cls,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,
        persist_layer_norm: bool = False,
        zero_centered_gamma: bool = False,
        normalization: str = "LayerNorm",
    ) -> nn.Module:
        # The last three are part of Megatron's signature; its config is what counts.
        kinds: dict[str, type[_Norm]] = {"RMSNorm": RMSNorm, "LayerNorm": LayerNorm}
        if config.normalization not in kinds:
            raise ValueError(f"normalization {config.normalization!r} is not RMSNorm or LayerNorm")
        return kinds[config.normalization](config, hidden_size, eps)
