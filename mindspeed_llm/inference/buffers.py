"""Intermediate results of a decoding step, on memory and views that stay from step to step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mindspeed_llm.inference.cache import RotaryTable, Step
from mindspeed_llm.inference.layer import LayerWeights


class Buffers:
    """Intermediate results of a step, shared by all layers, with the views that layers need.

    Attributes:
        hidden: the residual stream ``[b*s, h]``.
    """

    def __init__(self, hidden: Tensor, layer: LayerWeights) -> None:
        self._batch, self._width, size = hidden.shape
        rows = self._batch * self._width
        self._heads = heads = layer.heads
        self.hidden = hidden.new_empty(rows, size)
        self._mixed = hidden.new_empty(rows, heads.groups * (heads.queries + 2) * heads.size)
        self._wide = hidden.new_empty(rows, layer.inner_size)
        # [b, s, groups, queries + 2, d]
        self._grouped = self._mixed.view(
            self._batch, self._width, heads.groups, heads.queries + 2, heads.size
        )
        self._rotated = torch.empty_like(self._grouped)
        self._pair = self._rotated[..., -2:, :]
        self._query = self._rotated[..., :-2, :]

    def fits(self, hidden: Tensor) -> bool:
        """Whether these are buffers for hidden states ``[b, s, h]`` of this size."""
        return (self._batch, self._width) == hidden.shape[:2]

    def begin(self, step: Step, rotary: RotaryTable) -> None:
        """Prepare what all layers of this step share: rotary factors, slots and mask."""
        device, dtype = self.hidden.device, self.hidden.dtype
        self._prefill, self._slots = step.prefill, step.longest
        self._rows = self._mask = None
        if step.prefill:
            positions = torch.arange(step.width, device=device)[None]
            self._where: Any = slice(0, step.width)
        else:
            last = step.last()
            positions = last[:, None]
            self._where = slice(self._slots - 1, self._slots)
            if not step.even:
                self._where, self._rows = last, torch.arange(len(last), device=device)
                seen = torch.arange(self._slots, device=device) <= last[:, None]
                mask = torch.zeros(seen.shape, dtype=dtype, device=device)
                # [b, 1, 1, slots]
                self._mask = mask.masked_fill_(~seen, float("-inf"))[:, None, None]
        self._cos, sin = rotary.at(positions, self._slots - 1, self._heads.queries)
        size = self._cos.shape[-1]
        turned = self._grouped[..., :size], self._rotated[..., :size]
        self._turned = turned
        self._halves = [
            (new, old, factor)
            for new, old, factor in zip(
                turned[1].chunk(2, dim=-1),
                reversed(turned[0].chunk(2, dim=-1)),
                sin.chunk(2, dim=-1),
                strict=True,
            )
        ]
        self._passed = self._grouped[..., size:] if size < self._heads.size else None

    def run(self, layer: LayerWeights, cached: Tensor) -> None:
        """Add a layer to ``hidden``, and its keys and values to ``[2, b, groups, slots, d]``."""
        hidden = self.hidden
        normed = layer.input_norm(hidden)
        if layer.sharers == 1:
            layer.qkv.write(normed, self._mixed)
        else:
            self._mixed.copy_(layer.own_share(layer.qkv(normed)))
        layer.normalise_heads(self._grouped)
        self._rotate()
        layer.proj.add_to(hidden, self._attend(cached, layer.softmax_scale))
        wide = layer.fc1.write(layer.mlp_norm(hidden), self._wide)
        layer.fc2.add_to(hidden, layer.activate(wide))

    def _rotate(self) -> None:
        """Rotary embedding of the queries and keys in ``_mixed``; values stay as they are.

        One product over all of it is cheaper than cutting it up: the value's row of the table is
        cosine 1, sine 0.
        """
        old, new = self._turned
        torch.mul(old, self._cos, out=new)
        for half, other, sin in self._halves:
            half.addcmul_(other, sin)
        if self._passed is not None:
            self._rotated[..., -self._passed.shape[-1] :] = self._passed

    def _attend(self, cached: Tensor, scale: float) -> Tensor:
        """Add the keys and values to ``[2, b, groups, slots, d]`` and attend over all of them.

        Returns:
            ``[b*s, groups*queries*d]``.
        """
        if self._rows is None:
            # [b, s, groups, 2, d] to [2, b, groups, s, d]
            cached[:, :, :, self._where] = self._pair.permute(3, 0, 2, 1, 4)
        else:
            # Indexing by two tensors puts their common dimension, the rows, first.
            cached[:, self._rows, :, self._where] = self._pair[:, 0].transpose(1, 2)
        keys, values = cached[:, :, :, : self._slots].unbind()
        if not self._prefill and self._mask is None:
            return _attend_all(self._query[:, 0], keys, values, scale).view(self._batch, -1)
        if not self._prefill:
            # A group's heads are the rows of one small product: no key is read twice.
            out = F.scaled_dot_product_attention(
                self._query[:, 0], keys, values, attn_mask=self._mask, scale=scale
            )
            return out.view(self._batch, -1)
        # Pads stand on the right, where causality hides them from every real token.
        out = F.scaled_dot_product_attention(
            self._query.flatten(2, 3).transpose(1, 2),
            keys,
            values,
            is_causal=True,
            scale=scale,
            enable_gqa=self._heads.queries > 1,
        )
        return out.transpose(1, 2).reshape(len(self.hidden), -1)


def _attend_all(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attention of one token of each row to all slots, as three plain operators.

    At one token they take half the time of the fused form, which is made for many.

    Args:
        query: ``[b, groups, queries, d]``.
        keys, values: ``[b, groups, slots, d]``.
    """
    query, keys, values = (tensor.flatten(0, 1) for tensor in (query, keys, values))
    nothing = query.new_zeros(1, 1, 1)
    scores = torch.baddbmm(nothing, query, keys.transpose(1, 2), beta=0, alpha=scale)
    return torch.bmm(scores.softmax(dim=-1), values)
