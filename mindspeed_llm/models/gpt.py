"""Megatron's GPT model with what it lacks: the shape's rotary scaling, and a fused output loss.

``GPTModel`` differs from Megatron's only in

- rotary frequencies: every scaling of :mod:`mindspeed_llm.models.rope_scaling`, at the positions
  of each sequence where rows hold several (:class:`~mindspeed.transformer.packed.PackedRows`);
- factors of the embedding, and soft-capped logits;
- the loss: computed from the hidden states in chunks of tokens, so that the fp32 logits of a
  whole batch never exist, and without the rows that only pad the vocabulary; that of layers which
  predict further tokens (:mod:`mindspeed_llm.models.mtp`) is added in training, and they do not
  run otherwise.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler, roll_tensor
from torch import Tensor

from mindspeed.ops.linear_cross_entropy import linear_cross_entropy
from mindspeed.ops.soft_cap import soft_cap
from mindspeed.transformer.packed import PackedRows
from mindspeed_llm.models.rope_scaling import LongRope
from mindspeed_llm.models.rotary import ScaledRotaryEmbedding
from mindspeed_llm.models.shape import ModelShape


class GPTModel(MegatronGPTModel):
    """A pipeline chunk of a model of the given shape.

    Args:
        shape: the architecture; ``shape.vocab_size`` rows of the padded table are real.
        **kwargs: as Megatron's ``GPTModel``.

    Attributes:
        further_losses: sum and number of the losses of each layer that predicts further tokens in
            the last forward pass, ``[layers, 2]``; None without such layers or out of training.
    """

    def __init__(self, shape: ModelShape, **kwargs) -> None:
        super().__init__(**kwargs)
        self.shape = shape
        if shape.rope_scaling is not None and shape.latent is None:
            self.rotary_pos_emb = ScaledRotaryEmbedding(
                shape.rope_scaling,
                shape.rotary_base,
                kv_channels=shape.kv_channels,
                rotary_percent=shape.rotary_percent,
                rotary_interleaved=shape.use_glm_rope,
                use_cpu_initialization=self.config.use_cpu_initialization,
            )
        self.further_losses: Tensor | None = None
        if hasattr(self, "embedding") and shape.embedding_multiplier_scale != 1.0:
            self.embedding.register_forward_hook(self._scale_embedding)

    def _scale_embedding(self, module: Any, inputs: Any, output: Tensor) -> Tensor:
        # The factor is rounded to the model's type, as transformers does.
        return output * output.new_tensor(self.shape.embedding_multiplier_scale)

    def _preprocess(
        self, *args: Any, packed_seq_params: PackedSeqParams | None = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """As Megatron's: the decoder's input, the rotary angles, and what only inference has."""
        made = super()._preprocess(*args, packed_seq_params=packed_seq_params, **kwargs)
        if not isinstance(packed_seq_params, PackedRows) or made[1] is None:
            return made
        scaling = self.shape.rope_scaling
        limit = scaling.original_max_position_embeddings if isinstance(scaling, LongRope) else None
        return made[0], packed_seq_params.angles(self.rotary_pos_emb, limit), *made[2:]

    def _postprocess(
        self,
        hidden_states: Tensor,
        *,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        runtime_gather_output: bool | None = None,
        **layer_inputs: Any,
    ) -> Tensor:
        """Hidden states ``[s, b, h]`` to per-token losses ``[b, s]``, or to logits ``[b, s, v]``.

        Logits keep the padded vocabulary.
        """
        self.further_losses = None
        if not self.post_process:
            return hidden_states
        if labels is None:
            weight = self.output_weight()
            logits, _ = self.output_layer(hidden_states, weight, runtime_gather_output)
            cap = self.shape.output_logit_softcapping
            return (soft_cap(logits, cap) if cap else logits).transpose(0, 1).contiguous()
        if self.mtp_process and self.training:
            hidden_states = self._predict_further(hidden_states, labels, loss_mask, layer_inputs)
        return self._losses(hidden_states, labels)

    def _losses(self, hidden_states: Tensor, labels: Tensor) -> Tensor:
        return linear_cross_entropy(
            hidden_states,
            self.output_weight(),
            labels,
            vocab_size=self.shape.vocab_size,
            tp_group=self.pg_collection.tp,
            sequence_parallel=self.config.sequence_parallel,
            softcap=self.shape.output_logit_softcapping,
        )

    def _predict_further(
        self,
        hidden_states: Tensor,
        labels: Tensor,
        loss_mask: Tensor | None,
        layer_inputs: dict[str, Any],
    ) -> Tensor:
        """The same hidden states, with whose gradient that of the further losses comes."""
        packed = layer_inputs["packed_seq_params"]
        names = "input_ids position_ids attention_mask rotary_pos_emb packed_seq_params"
        given = {name: layer_inputs[name] for name in names.split()}
        states = self.mtp(hidden_states=hidden_states, embedding=self.embedding, **given)
        layers = self.shape.mtp_num_layers
        hidden_states, *further = states.chunk(1 + layers)
        mask = torch.ones_like(labels) if loss_mask is None else loss_mask
        totals = []
        for state in further:
            labels, _ = roll_tensor(labels)
            mask, _ = roll_tensor(mask)
            if packed is not None:
                # Beyond its end lies another sequence.
                mask = mask.masked_fill(packed.ends, 0)
            count = mask.sum()
            losses = self._losses(state, labels) * mask
            totals.append(torch.stack([losses.detach().sum(), count.float()]))
            if not self.config.calculate_per_token_loss:
                losses = losses / count
            scale = self.config.mtp_loss_scaling_factor / layers
            hidden_states = MTPLossAutoScaler.apply(hidden_states, scale * losses)
        self.further_losses = torch.stack(totals)
        return hidden_states

    def sharded_state_dict(self, *args, **kwargs) -> dict[str, Any]:
        """As Megatron's, with attention weights that load at layouts with other padding heads.

        A layout whose heads do not divide adds zero heads at the end of these tensors, as it
        does rows to the vocabulary; a reader takes what both have, and the rest is zero.
        """
        state = super().sharded_state_dict(*args, **kwargs)
        for key, value in state.items():
            if isinstance(value, ShardedTensor) and ".self_attention.linear_" in key:
                value.allow_shape_mismatch = True
        return state

    def output_weight(self) -> Tensor:
        """The output layer's weight on this rank, ``[padded_vocab / tp, h]``."""
        if self.share_embeddings_and_output_weights:
            return self.shared_embedding_or_output_weight()
        return self.output_layer.weight
