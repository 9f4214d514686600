"""A transformer layer that also normalises what attention and MLP add to the residual stream.

h = x + norm(attention(norm(x))), then h + norm(mlp(norm(h))), as in Gemma 2 and GLM-4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn


@dataclass
class SandwichLayerSubmodules(TransformerLayerSubmodules):
    """Megatron's, and the two further norms."""

    post_attn_norm: ModuleSpec | type = IdentityOp
    post_mlp_layernorm: ModuleSpec | type = IdentityOp


class SandwichLayer(TransformerLayer):
    """Megatron's layer; each output passes its norm before it is added."""

    def __init__(self, config: Any, submodules: SandwichLayerSubmodules, *args: Any, **kwargs: Any):
        super().__init__(config, submodules, *args, **kwargs)
        size, epsilon = config.hidden_size, config.layernorm_epsilon
        for name in ("post_attn_norm", "post_mlp_layernorm"):
            norm = build_module(
                getattr(submodules, name), config=config, hidden_size=size, eps=epsilon
            )
            setattr(self, name, norm)
        for name, norm in (
            ("self_attn_bda", self.post_attn_norm),
            ("mlp_bda", self.post_mlp_layernorm),
        ):
            setattr(self, name, _after(norm, getattr(self, name)))


def _after(norm: nn.Module, add: Callable[..., Any]) -> Callable[..., Any]:
    """Megatron's bias-dropout-add of an output that is normalised first."""

    def of_mode(training: bool, fused: bool) -> Callable[..., Tensor]:
        inner = add(training, fused)

        def normed(output: tuple[Tensor, Tensor | None], residual: Tensor, dropout: float):
            out, bias = output
            return inner((norm(out if bias is None else out + bias), None), residual, dropout)

        return normed

    return of_mode
