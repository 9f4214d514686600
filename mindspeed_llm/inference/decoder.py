"""A model chunk run token by token over a key/value cache, with the weights of Megatron's modules.

Everything is read off the module tree (QKV bias, query/key norms, tied output, grouped heads,
tensor-parallel shards), and a model with a part that is not known here is reported by
:func:`obstacles`, never decoded wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mindspeed_llm.inference.buffers import Buffers
from mindspeed_llm.inference.cache import KeyValueCache, RotaryTable, Step
from mindspeed_llm.inference.layer import LayerWeights, norm_function
from mindspeed_llm.inference.one_token import OneToken
from mindspeed_llm.models.rope_scaling import LongRope

if TYPE_CHECKING:
    from mindspeed_llm.models.gpt import GPTModel

# What a shape may not have beyond Megatron's config.
_PLAIN_SHAPE = {
    "embedding_multiplier_scale": 1.0,
    "attn_logit_softcapping": None,
    "output_logit_softcapping": None,
}

# Megatron config fields that change what a layer computes, and the values implemented here.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "apply_residual_connection_post_layernorm": (False,),
    "attention_output_gate": (False,),
    "context_parallel_size": (1,),
    "fp32_residual_connection": (False,),
    "multi_latent_attention": (False,),
    "rotary_interleaved": (False,),
    "sequence_parallel": (False,),
    "softmax_type": ("vanilla",),
    "window_size": (None,),
    "activation_func_clamp_value": (None,),
    "glu_linear_offset": (0, 0.0),
}


def obstacles(model: GPTModel) -> list[str]:
    """What in a model chunk :class:`ChunkDecoder` does not know; empty if it can decode it."""
    from megatron.core.transformer.attention import SelfAttention
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.mlp import MLP
    from megatron.core.transformer.transformer_layer import TransformerLayer

    found = [
        f"{name}={getattr(model.config, name)}"
        for name, plain in _PLAIN.items()
        if getattr(model.config, name, plain[0]) not in plain
    ]
    shape = model.shape
    found += [
        f"{name}={getattr(shape, name)}"
        for name, plain in _PLAIN_SHAPE.items()
        if getattr(shape, name) != plain
    ]
    scaling = shape.rope_scaling
    if scaling is not None and (isinstance(scaling, LongRope) or scaling.attention_factor != 1.0):
        found.append(f"rotary scaling {scaling.kind}")
    if model.position_embedding_type != "rope":
        found.append(f"position embedding {model.position_embedding_type}")
    parts = {"self_attention": SelfAttention, "mlp": MLP, "cross_attention": IdentityOp}
    known = {*parts, "input_layernorm", "pre_mlp_layernorm", "pre_cross_attn_layernorm"}
    for layer in model.decoder.layers:
        if type(layer) is not TransformerLayer:
            found.append(type(layer).__name__)
            continue
        found += [
            f"{name} {type(getattr(layer, name)).__name__}"
            for name, kind in parts.items()
            if type(getattr(layer, name)) is not kind
        ]
        found += [
            name
            for name, part in layer.named_children()
            if name not in known and any(True for _ in part.parameters())
        ]
    return sorted(set(found))


class ChunkDecoder:
    """One model chunk with its rotary table.

    Args:
        model: a chunk without :func:`obstacles`.
        tp_group: its tensor-parallel process group.
    """

    def __init__(self, model: GPTModel, tp_group: torch.distributed.ProcessGroup) -> None:
        self.model = model
        self._tp = tp_group
        self._layers = [LayerWeights(layer, tp_group) for layer in model.decoder.layers]
        self._dtype = model.config.params_dtype
        self._final_norm = (
            norm_function(model.decoder.final_layernorm) if model.post_process else None
        )
        self._rotary = RotaryTable(model.rotary_pos_emb.inv_freq, self._dtype)
        self._buffers: Buffers | OneToken | None = None

    def new_cache(self, batch: int, device: torch.device) -> KeyValueCache:
        """An empty cache for ``batch`` rows."""
        heads = self._layers[0].heads
        return KeyValueCache(
            len(self._layers), batch, heads.groups, heads.size, self._dtype, device
        )

    def run(self, inputs: Tensor, cache: KeyValueCache, step: Step) -> Tensor:
        """Tokens ``[b, s]`` (first chunk) or hidden states ``[b, s, h]`` through the layers.

        Returns:
            Hidden states ``[b, s, h]``, good until the next call; from the last chunk this
            rank's part of the logits of each row's last token, ``[b, padded vocabulary / tp]``.
        """
        model = self.model
        batch = len(inputs)
        hidden = self._embed(inputs) if model.pre_process else inputs
        buffers = self._buffers_for(hidden)
        buffers.begin(step, self._rotary)
        for layer, pair in zip(self._layers, cache.pairs, strict=True):
            buffers.run(layer, pair)
        if self._final_norm is None:
            return buffers.hidden.view(batch, step.width, -1)
        last = buffers.hidden
        if step.prefill:
            first = torch.arange(batch, device=last.device) * step.width
            last = last[first + step.last()]
        return F.linear(self._final_norm(last), model.output_weight())

    def _embed(self, tokens: Tensor) -> Tensor:
        """Rows of the embedding table ``[b, s, h]``."""
        table = self.model.embedding.word_embeddings
        if self._tp.size() > 1:
            return table(tokens)
        return F.embedding(tokens, table.weight)

    def _buffers_for(self, hidden: Tensor) -> Buffers | OneToken:
        """The buffers of the step before if they fit, with ``hidden`` in them."""
        if self._buffers is None or not self._buffers.fits(hidden):
            layer = self._layers[0]
            kind = OneToken if OneToken.suits(hidden, layer) else Buffers
            self._buffers = kind(hidden, layer)
        self._buffers.hidden.copy_(hidden.view_as(self._buffers.hidden))
        return self._buffers
