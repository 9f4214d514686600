"""Megatron's GPT model with what it lacks: the shape's rotary scaling, and a fused output loss.

``GPTModel`` differs from Megatron's only in

- rotary frequencies: any ``llama3`` scaling parameters (Megatron fixes three of the four);
- the loss: computed from the hidden states in chunks of tokens, so that the fp32 logits of a
  whole batch never exist, and without the rows that only pad the vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.models.gpt import GPTModel as MegatronGPTModel
from torch import Tensor

from mindspeed.ops.linear_cross_entropy import linear_cross_entropy
from mindspeed_llm.models.shape import ModelShape, RopeScaling


class GPTModel(MegatronGPTModel):
    """A pipeline chunk of a model of the given shape.

    Args:
        shape: the architecture; ``shape.vocab_size`` rows of the padded table are real.
        **kwargs: as Megatron's ``GPTModel``.
    """

    def __init__(self, shape: ModelShape, **kwargs) -> None:
        super().__init__(**kwargs)
        self.shape = shape
        if shape.rope_scaling is not None:
            rope = self.rotary_pos_emb
            rope.inv_freq = scale_frequencies(rope.inv_freq, shape.rope_scaling)

    def _postprocess(self, hidden_states: Tensor, *args, labels: Tensor | None = None, **kwargs):
        """Hidden states ``[s, b, h]`` to per-token losses ``[b, s]``, or to logits ``[b, s, v]``.

        Logits keep the padded vocabulary; see :meth:`real_logits`.
        """
        if not self.post_process or labels is None:
            return super()._postprocess(hidden_states, *args, labels=labels, **kwargs)
        return linear_cross_entropy(
            hidden_states,
            self.output_weight(),
            labels,
            vocab_size=self.shape.vocab_size,
            tp_group=self.pg_collection.tp,
            sequence_parallel=self.config.sequence_parallel,
        )

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


def scale_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3's rotary scaling of inverse frequencies ``[d/2]``.

    Slow components (long wavelengths) are divided by ``factor``, fast ones kept, the band
    between mixed linearly, as in Hugging Face's ``rope_type: llama3``.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies
