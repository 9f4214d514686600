"""Megatron's core attention through :func:`mindspeed.ops.attention.attention`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

from megatron.core import tensor_parallel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention
from torch import Tensor

from mindspeed.ops.attention import attention
from mindspeed.ops.packed_attention import packed_attention
from mindspeed.transformer.packed import PackedRows, lengths_of

_CAUSAL = (AttnMaskType.causal, AttnMaskType.padding_causal)


class DotProductAttention(MegatronModule):
    """Attention between this rank's heads, without expanding grouped keys and values.

    The constructor has the signature of Megatron's class of this name, so that layer specs can name
    either. A causal layer needs no mask: one that is given is taken for the causal mask, unless the
    mask type is ``arbitrary`` or ``padding``.

    Raises:
        ValueError: the config asks for something that this class does not do.
    """

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        k_channels: int | None = None,
        v_channels: int | None = None,
    ) -> None:
        super().__init__(config=config)
        _refuse_unsupported(config)
        self.layer_number = max(1, layer_number)
        self.attn_mask_type = attn_mask_type
        self.attention_type = attention_type
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        width = k_channels or config.kv_channels
        self.softmax_scale = 1 / math.sqrt(width) if softmax_scale is None else softmax_scale
        windowed = is_layer_window_attention(
            config.window_size, config.window_attn_skip_freq, self.layer_number
        )
        # Megatron counts the keys before a query's own.
        self.window = config.window_size[0] + 1 if windowed else None
        # No field of Megatron's config.
        self.softcap = getattr(config, "attn_logit_softcapping", None)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Query [sq, b, heads/tp, d], key and value [sk, b, groups/tp, d] -> [sq, b, heads/tp · d].

        Args:
            attention_mask: bool [b or 1, 1, sq, sk], True where a key is hidden.
            attn_mask_type: overrides the layer's (Megatron passes ``no_mask`` when decoding).
            packed_seq_params: sequences of a row that do not see each other: a
                :class:`~mindspeed.transformer.packed.PackedRows`, or Megatron's format "thd", in
                which query, key and value have no dimension b, and the result is [t, heads/tp · d].
        """
        if attention_bias is not None:
            raise ValueError("attention_bias is not supported by the local attention")
        kind = self.attn_mask_type if attn_mask_type is None else attn_mask_type
        causal = kind in _CAUSAL and (kind is AttnMaskType.causal or attention_mask is None)
        mask = None if causal or kind is AttnMaskType.no_mask else attention_mask
        dropout = self.dropout if self.training else 0.0
        if packed_seq_params is not None:
            if kind not in _CAUSAL:
                raise ValueError(f"packed sequences need causal attention, not {kind.name}")
            return self._packed(query, key, value, packed_seq_params, dropout)
        with self._random_state(dropout):
            return attention(
                query,
                key,
                value,
                scale=self.softmax_scale,
                causal=causal,
                mask=mask,
                dropout=dropout,
                window=self.window,
                softcap=self.softcap,
            )

    def _packed(
        self, query: Tensor, key: Tensor, value: Tensor, params: PackedSeqParams, dropout: float
    ) -> Tensor:
        lengths: Sequence[int]
        if isinstance(params, PackedRows):
            lengths, flat = params.lengths, False
        else:
            lengths, flat = lengths_of(params, query.shape[0]), True
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        with self._random_state(dropout):
            context = packed_attention(
                query,
                key,
                value,
                lengths,
                scale=self.softmax_scale,
                dropout=dropout,
                window=self.window,
                softcap=self.softcap,
            )
        return context.squeeze(1) if flat else context

    def _random_state(self, dropout: float):
        """Heads differ between tensor-parallel ranks, and so must their dropout."""
        if not dropout or self.config.sequence_parallel:
            return nullcontext()
        return tensor_parallel.get_cuda_rng_tracker().fork()


def _refuse_unsupported(config: TransformerConfig) -> None:
    if config.context_parallel_size > 1:
        raise ValueError("context parallelism is not supported by the local attention")
    if config.window_size is not None and (config.window_size[0] < 0 or config.window_size[1]):
        raise ValueError(f"window_size {config.window_size}: only windows to the left, (n, 0)")
    if config.softmax_type != "vanilla":
        raise ValueError(f"softmax_type {config.softmax_type!r} is not supported here")
    if config.apply_query_key_layer_scaling:
        raise ValueError("apply_query_key_layer_scaling is not supported here")
