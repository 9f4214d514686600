"""A model chunk run token by token over a key/value cache, with the weights of Megatron's modules.

Megatron's own forward spends more time in Python per layer than a small model's matrices take;
here a layer of one token is some twenty tensor operations. Everything is read off the module tree
(QKV bias, query/key norms, tied output, grouped heads, tensor-parallel shards), and a model with
a part that is not known here is reported by :func:`obstacles`, never decoded wrongly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mindspeed_llm.inference.cache import KeyValueCache, RotaryTable, Step

if TYPE_CHECKING:
    from mindspeed_llm.models.gpt import GPTModel

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
        self._layers = [LayerDecoder(layer, tp_group) for layer in model.decoder.layers]
        self._dtype = model.config.params_dtype
        self._rotary = RotaryTable(model.rotary_pos_emb.inv_freq, self._dtype)

    def new_cache(self, batch: int, device: torch.device) -> KeyValueCache:
        """An empty cache for ``batch`` rows."""
        layer = self._layers[0]
        return KeyValueCache(
            len(self._layers), batch, layer.groups, layer.head, self._dtype, device
        )

    def run(self, inputs: Tensor, cache: KeyValueCache, step: Step) -> Tensor:
        """Tokens ``[b, s]`` (first chunk) or hidden states ``[b, s, h]`` through the layers.

        Returns:
            Hidden states ``[b, s, h]``; from the last chunk this rank's part of the logits of
            each row's last token, ``[b, padded vocabulary / tp]``.
        """
        model = self.model
        hidden = model.embedding.word_embeddings(inputs) if model.pre_process else inputs
        attention = _Attention(step, self._rotary, self._dtype)
        for number, layer in enumerate(self._layers):
            hidden = layer.run(hidden, attention, cache.keys[number], cache.values[number])
        if not model.post_process:
            return hidden
        rows = torch.arange(len(hidden), device=hidden.device)
        last = hidden[rows, step.last()] if step.prefill else hidden[:, -1]
        return F.linear(model.decoder.final_layernorm(last), model.output_weight())


class _Attention:
    """What all layers of a step share: rotary factors, slots to write and the mask."""

    def __init__(self, step: Step, rotary: RotaryTable, dtype: torch.dtype) -> None:
        self.prefill = step.prefill
        self.slots = step.longest
        device = step.device
        if self.prefill:
            positions = torch.arange(step.width, device=device)[None]
            self.where: Any = slice(0, step.width)
            self.rows = None
            self.mask = None
        else:
            last = step.last()
            positions = last[:, None]
            if step.even:
                self.where, self.rows, self.mask = slice(self.slots - 1, self.slots), None, None
            else:
                self.where, self.rows = last, torch.arange(len(last), device=device)
                seen = torch.arange(self.slots, device=device) <= last[:, None]
                mask = torch.zeros(seen.shape, dtype=dtype, device=device)
                # [b, 1, 1, slots]
                self.mask = mask.masked_fill_(~seen, float("-inf"))[:, None, None]
        self.cos, self.sin = rotary.at(positions, step.longest - 1)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary embedding of ``[b, s, groups, heads, d]``; components past the table's pass."""
        size = self.cos.shape[-1]
        if size < x.shape[-1]:
            return torch.cat((self.rotate(x[..., :size]), x[..., size:]), dim=-1)
        return torch.addcmul(x * self.cos, x.roll(size // 2, -1), self.sin)

    def store(self, cached: Tensor, new: Tensor) -> None:
        """Write ``[b, s, groups, d]`` into the cache ``[b, groups, slots, d]``."""
        if self.rows is None:
            cached[:, :, self.where] = new.transpose(1, 2)
        else:
            cached[self.rows, :, self.where] = new[:, 0]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Queries ``[b, s, groups, heads, d]`` over the cache, as ``[b, s, groups*heads*d]``."""
        batch, width, groups, heads, _ = query.shape
        keys, values = keys[:, :, : self.slots], values[:, :, : self.slots]
        if not self.prefill:
            # A group's heads become the rows of one small product: no key is read twice.
            out = F.scaled_dot_product_attention(
                query[:, 0], keys, values, attn_mask=self.mask, scale=scale
            )
            return out.reshape(batch, 1, -1)
        # Pads stand on the right, where causality hides them from every real token.
        out = F.scaled_dot_product_attention(
            query.flatten(2, 3).transpose(1, 2),
            keys,
            values,
            is_causal=True,
            scale=scale,
            enable_gqa=heads > 1,
        )
        return out.transpose(1, 2).reshape(batch, width, -1)


class LayerDecoder:
    """One ``TransformerLayer``'s weights, ready for decoding."""

    def __init__(self, layer: Any, tp_group: torch.distributed.ProcessGroup) -> None:
        config, attention = layer.config, layer.self_attention
        self._layer = layer
        self._attention = attention
        self._tp = tp_group
        self._tp_size = tp_group.size()
        self.head = attention.hidden_size_per_attention_head
        self.groups = attention.num_query_groups_per_partition
        self._heads = attention.num_attention_heads_per_partition // self.groups
        self._scale = config.softmax_scale or self.head**-0.5
        self._gated = config.gated_linear_unit
        self._activation = config.activation_func
        # Fewer groups than ranks: each rank has the group of its position and a share of its
        # query heads (Megatron's rule).
        self._ranks_per_group = max(1, self._tp_size // config.num_query_groups)

    def run(self, hidden: Tensor, attention: _Attention, keys: Tensor, values: Tensor) -> Tensor:
        """Hidden states ``[b, s, h]`` to the same; keys and values are added to the cache."""
        layer, own = self._layer, self._attention
        query, key, value = self._query_key_value(layer.input_layernorm(hidden))
        if own.q_layernorm is not None:
            query, key = own.q_layernorm(query), own.k_layernorm(key)
        attention.store(keys, attention.rotate(key)[:, :, :, 0])
        attention.store(values, value)
        mixed = attention.attend(attention.rotate(query), keys, values, self._scale)
        hidden = hidden + self._row_parallel(own.linear_proj, mixed)
        inner = layer.mlp.linear_fc1
        wide = F.linear(layer.pre_mlp_layernorm(hidden), inner.weight, inner.bias)
        if self._gated:
            gate, up = wide.chunk(2, dim=-1)
            wide = self._activation(gate) * up
        else:
            wide = self._activation(wide)
        return hidden + self._row_parallel(layer.mlp.linear_fc2, wide)

    def _query_key_value(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[b, s, h]`` to queries ``[b, s, g, n, d]``, keys ``[b, s, g, 1, d]``, values
        ``[b, s, g, d]`` of this rank's groups and heads."""
        linear = self._attention.linear_qkv
        mixed = F.linear(hidden, linear.weight, linear.bias)
        if self._ranks_per_group > 1:
            mixed = self._own_group(mixed)
        mixed = mixed.view(*hidden.shape[:2], self.groups, -1, self.head)
        query, key, value = mixed[..., :-2, :], mixed[..., -2:-1, :], mixed[..., -1, :]
        if self._ranks_per_group > 1:
            share = self._heads // self._ranks_per_group
            start = self._tp.rank() % self._ranks_per_group * share
            query = query[..., start : start + share, :]
        return query, key, value

    def _own_group(self, mixed: Tensor) -> Tensor:
        """The group that this rank shares with its neighbours, from all ranks' rows."""
        parts = [torch.empty_like(mixed) for _ in range(self._tp_size)]
        torch.distributed.all_gather(parts, mixed.contiguous(), group=self._tp)
        first = self._tp.rank() // self._ranks_per_group * self._ranks_per_group
        return torch.cat(parts[first : first + self._ranks_per_group], dim=-1)

    def _row_parallel(self, linear: Any, inputs: Tensor) -> Tensor:
        out = F.linear(inputs, linear.weight)
        if self._tp_size > 1:
            torch.distributed.all_reduce(out, group=self._tp)
        return out if linear.bias is None else out + linear.bias
