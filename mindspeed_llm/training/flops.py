"""Floating-point operations of a training step, for the throughput that is logged."""

from __future__ import annotations

from mindspeed_llm.models.shape import ModelShape


def training_flops(shape: ModelShape, sequences: int, seq_length: int) -> float:
    """Operations of forward and backward over a batch, without recomputation.

    Every weight of a linear layer that a token meets takes part in one multiply-add in the forward
    pass and two in the backward pass; of the routed experts a token meets its own. Causal attention
    reads half of the score matrix on average, windows less. The embedding look-up costs nothing,
    the output layer counts once, tied or not, and again for each layer that predicts further ahead.
    """
    layers = shape.num_layers + shape.mtp_num_layers
    table = shape.vocab_size * shape.hidden_size
    # Such a layer also joins a hidden state and an embedding into one hidden state.
    weights = (1 + shape.mtp_num_layers) * table + shape.mtp_num_layers * 2 * shape.hidden_size**2
    attention = 0.0
    for layer in range(layers):
        weights += _attention_weights(shape) + _mlp_weights(shape, layer)
        attention += _score_channels(shape) * _mean_keys(shape, layer, seq_length)
    return 6.0 * sequences * seq_length * (weights + attention)


def _attention_weights(shape: ModelShape) -> int:
    """Weights of a layer's projections around attention."""
    hidden, heads, latent = shape.hidden_size, shape.num_attention_heads, shape.latent
    if latent is None:
        return hidden * (2 * shape.query_size + 2 * shape.kv_size)
    query = heads * latent.query_channels
    keys_values = heads * (latent.qk_head_dim + latent.v_head_dim)
    rank = latent.q_lora_rank
    return (
        (rank * (hidden + query) if rank else hidden * query)
        + hidden * (latent.kv_lora_rank + latent.qk_pos_emb_head_dim)
        + latent.kv_lora_rank * keys_values
        + heads * latent.v_head_dim * hidden
    )


def _mlp_weights(shape: ModelShape, layer: int) -> int:
    """Weights of a layer's MLP, or of the router and of the experts that a token meets."""
    experts = shape.experts
    if experts is None or shape.is_dense(layer):
        return 3 * shape.hidden_size * shape.ffn_hidden_size
    width = experts.moe_router_topk * experts.moe_ffn_hidden_size
    width += experts.moe_shared_expert_intermediate_size or 0
    return shape.hidden_size * (3 * width + experts.num_experts + experts.shared_expert_gate)


def _score_channels(shape: ModelShape) -> int:
    """Multiply-adds of a query with one key and one value, over all heads."""
    latent = shape.latent
    if latent is None:
        return 2 * shape.query_size
    return shape.num_attention_heads * (latent.query_channels + latent.v_head_dim)


def _mean_keys(shape: ModelShape, layer: int, seq_length: int) -> float:
    """Keys that a query sees on average; half a key is neglected."""
    window = shape.sliding_window
    if window is None or window >= seq_length or (shape.interleave_sliding_window and layer % 2):
        return seq_length / 2
    return window * (1 - window / (2 * seq_length))
