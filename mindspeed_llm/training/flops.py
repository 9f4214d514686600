"""Floating-point operations of a training step, for the throughput that is logged."""

from __future__ import annotations

from mindspeed_llm.models.shape import ModelShape


def training_flops(shape: ModelShape, sequences: int, seq_length: int) -> float:
    """Operations of forward and backward over a batch, without recomputation.

    Every weight of a linear layer takes part in one multiply-add per token in the forward pass
    and two in the backward pass; causal attention reads half of the score matrix on average.
    The embedding look-up costs nothing, the output layer counts once, tied or not.
    """
    per_layer = shape.hidden_size * (
        2 * shape.query_size + 2 * shape.kv_size + 3 * shape.ffn_hidden_size
    )
    weights = shape.num_layers * per_layer + shape.vocab_size * shape.hidden_size
    attention = shape.num_layers * 2 * shape.query_size * seq_length / 2
    return 6.0 * sequences * seq_length * (weights + attention)
