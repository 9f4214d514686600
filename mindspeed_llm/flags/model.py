"""Flags of the architecture. Left out, they come from ``config.json`` or the checkpoint.

A default is what Megatron takes when nothing else supplies the value, except where all models
here have one form and Megatron's own default is another (norm, MLP, biases, positions, dropout):
there it is that form. Whether the user gave a flag is told by ``Config.given``, not by its value.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag
from mindspeed_llm.flags.status import ALWAYS, part_of, unsupported


@dataclass(frozen=True)
class ModelFlags(Group):
    title = "model shape (left out: taken from --load or --hf-config)"

    # Size
    num_layers: int | None = flag(None, "Number of transformer layers.", at_least=1)
    hidden_size: int | None = flag(None, "Width of the residual stream.", at_least=1)
    ffn_hidden_size: int | None = flag(
        None,
        "Width of the MLP. Without it and without a config: 8/3 x hidden in steps of 64.",
        at_least=1,
    )
    num_attention_heads: int | None = flag(None, "Number of query heads.", at_least=1)
    group_query_attention: bool = flag(
        False, "Share key/value heads among groups of query heads (see --num-query-groups)."
    )
    num_query_groups: int | None = flag(
        None, "Number of key/value heads; counts with --group-query-attention.", at_least=1
    )
    kv_channels: int | None = flag(
        None, "Size of one head; hidden / heads when left out.", at_least=1
    )
    max_position_embeddings: int | None = flag(
        None, "Largest number of positions the model is built for.", at_least=1
    )
    vocab_size: int | None = flag(
        None, "Vocabulary size before padding; the tokenizer's or config's when left out."
    )
    padded_vocab_size: int | None = flag(
        None, "Rows of the embedding table. Left out: the vocabulary padded.", at_least=1
    )
    make_vocab_size_divisible_by: int = flag(
        128, "Pad the vocabulary to a multiple of this times the tensor-parallel size.", at_least=1
    )
    untie_embeddings_and_output_weights: bool = flag(
        False, "Give the output layer its own weight instead of the input embedding's."
    )

    # Positions
    position_embedding_type: str = flag(
        "rope",
        "How positions enter the model (Megatron's default: learned_absolute).",
        choices=("rope",),
        refused={
            "learned_absolute": "learned position embeddings",
            "none": "models without positions",
            "relative": "relative position embeddings",
            "mrope": "multi-modal rotary embeddings",
            "alibi": "ALiBi",
            "yarn": "YaRN rotary scaling",
        },
    )
    use_rotary_position_embeddings: bool = flag(
        False, "Older spelling of --position-embedding-type rope.", effect=ALWAYS
    )
    rotary_base: float = flag(10000.0, "Base of the rotary frequencies.", above=0)
    rotary_percent: float = flag(1.0, "Share of each head that is rotated.", above=0, at_most=1)
    rotary_interleaved: bool = flag(
        False,
        "Rotate neighbouring pairs of channels instead of the two halves (see --use-glm-rope).",
    )
    rotary_seq_len_interpolation_factor: int | None = flag(
        None,
        "Linear interpolation of positions.",
        effect=unsupported("linear rotary interpolation", 1),
    )
    use_rope_scaling: bool = flag(False, "Llama 3's frequency-dependent rotary scaling.")
    rope_scaling_factor: float = flag(8.0, "Factor of the rotary scaling.", above=0)
    rope_scaling_type: str | None = flag(
        None,
        "Kind of rotary scaling; llama3 is the same as --use-rope-scaling.",
        choices=("llama3", "yarn", "longrope"),
        refused={"plm": "PLM rotary scaling"},
    )
    low_freq_factor: float | None = flag(None, "llama3 scaling: low-frequency factor.", above=0)
    high_freq_factor: float | None = flag(None, "llama3 scaling: high-frequency factor.", above=0)
    original_max_position_embeddings: int | None = flag(
        None, "llama3, longrope: positions of the model before it was stretched.", at_least=1
    )
    use_glm_rope: bool = flag(
        False, "GLM's rotary form: neighbouring pairs of channels (with --rotary-percent 0.5)."
    )
    dynamic_factor: float = flag(
        1.0, "Factor of dynamic scaling.", effect=unsupported("dynamic rotary scaling")
    )
    longrope_freqs_type: str = flag(
        "mul",
        "LongRoPE: how frequencies combine.",
        choices=("mul",),
        refused={"outer": "LongRoPE by outer product"},
        effect=part_of("rope_scaling_type"),
    )
    long_factor: str | None = flag(
        None,
        "LongRoPE: divisors of the frequencies of long texts, with commas between.",
        effect=part_of("rope_scaling_type"),
    )
    short_factor: str | None = flag(
        None, "LongRoPE: those of short texts.", effect=part_of("rope_scaling_type")
    )
    long_mscale: float | None = flag(
        None, "LongRoPE scale of long texts.", effect=unsupported("LongRoPE scales of its own")
    )
    short_mscale: float | None = flag(
        None, "LongRoPE scale of short texts.", effect=unsupported("LongRoPE scales of its own")
    )
    rope_scaling_original_max_position_embeddings: int | None = flag(
        None, "YaRN: positions before stretching.", effect=part_of("rope_scaling_type")
    )
    rope_scaling_mscale: float = flag(1.0, "YaRN mscale.", effect=part_of("rope_scaling_type"))
    rope_scaling_mscale_all_dim: float = flag(
        0.0, "YaRN mscale of all dimensions.", effect=part_of("rope_scaling_type")
    )
    beta_fast: float = flag(
        32.0,
        "YaRN beta fast.",
        deprecated=("--rope-scaling-beta-fast",),
        effect=part_of("rope_scaling_type"),
    )
    beta_slow: float = flag(
        1.0,
        "YaRN beta slow.",
        deprecated=("--rope-scaling-beta-slow",),
        effect=part_of("rope_scaling_type"),
    )

    # Layers
    normalization: str = flag(
        "RMSNorm",
        "Kind of norm (Megatron's default: LayerNorm).",
        choices=("RMSNorm",),
        refused={"LayerNorm": "models with LayerNorm"},
    )
    norm_epsilon: float = flag(
        1e-5, "Epsilon of the norms.", spellings=("--norm-epsilon", "--layernorm-epsilon"), above=0
    )
    qk_layernorm: bool = flag(False, "Normalise each query and key head.")
    swiglu: bool = flag(
        True,
        "Gated SiLU MLP (Megatron's default: GELU).",
        spellings=("--swiglu",),
        refused={False: "MLPs without a gate"},
    )
    add_bias_linear: bool = flag(
        False,
        "Biases in the linear layers (Megatron's default).",
        off=("--disable-bias-linear",),
        refused={True: "biases in all linear layers"},
    )
    add_qkv_bias: bool = flag(False, "Bias in the query/key/value projection only.")
    attention_dropout: float = flag(
        0.0, "Dropout of attention probabilities (Megatron's default: 0.1).", at_least=0, below=1
    )
    hidden_dropout: float = flag(
        0.0, "Dropout of the hidden state (Megatron's default: 0.1).", at_least=0, below=1
    )
    init_method_std: float = flag(0.02, "Standard deviation of new weights.", above=0)
    attention_softmax_in_fp32: bool = flag(
        False,
        "Softmax of attention in fp32 (always so).",
        effect=ALWAYS,
    )
    fp32_residual_connection: bool = flag(
        False, "Keep the residual stream in fp32.", effect=unsupported("fp32 residual stream")
    )
    apply_query_key_layer_scaling: bool = flag(
        False,
        "Scale scores by 1/layer number.",
        effect=unsupported("query-key layer scaling"),
    )

    # Implementation
    spec: tuple[str, ...] | None = flag(
        None,
        "Module and attribute of the layer spec, e.g. "
        "mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec.",
        nargs=2,
    )
    use_mcore_models: bool = flag(
        False, "Build on Megatron-Core (always so; the flag is kept for scripts).", effect=ALWAYS
    )
    use_legacy_models: bool = flag(
        False, "Megatron's models before Core.", effect=unsupported("legacy Megatron models")
    )
    transformer_impl: str = flag(
        "local",
        "Which modules layers are built from.",
        choices=("local",),
        refused={"transformer_engine": "TransformerEngine modules"},
    )

    # Parts that some families have
    post_norm: bool = flag(False, "Also normalise the outputs of attention and MLP.")
    add_rmsnorm_offset: bool = flag(False, "Norms scale by 1 + weight.")
    layernorm_zero_centered_gamma: bool = flag(
        False, "The same, by Megatron's name.", spellings=("--apply-layernorm-1p",)
    )
    geglu: bool = flag(False, "GELU (tanh form) instead of SiLU in the gated MLP.")
    gelu_tanh: bool = flag(False, "The same.")
    quick_geglu: bool = flag(False, "Gated quick GELU.", effect=unsupported("gated quick GELU"))
    squared_relu: bool = flag(False, "Squared ReLU MLP.", effect=unsupported("squared ReLU"))
    openai_gelu: bool = flag(False, "OpenAI's GELU.", effect=unsupported("OpenAI GELU"))
    query_pre_attn_scalar: int | None = flag(
        None, "Scale scores by the root of this instead of the head size.", at_least=1
    )
    attn_logit_softcapping: float | None = flag(
        None, "Soft-cap attention scores: cap x tanh(score / cap).", above=0
    )
    output_logit_softcapping: float | None = flag(None, "Soft-cap the logits.", above=0)
    input_embeds_norm: bool = flag(False, "Multiply the embedding by sqrt(hidden size).")
    embedding_multiplier_scale: float = flag(1.0, "Factor of the embedding.", above=0)
    output_multiplier_scale: float | None = flag(
        None, "Factor of the logits.", effect=unsupported("output multiplier", 1.0)
    )
    scale_emb: float | None = flag(
        None, "MiniCPM embedding factor.", effect=unsupported("MiniCPM family", 1.0)
    )
    scale_depth: float | None = flag(
        None, "MiniCPM residual factor.", effect=unsupported("MiniCPM family")
    )
    dim_model_base: float | None = flag(
        None, "MiniCPM logit factor.", effect=unsupported("MiniCPM family")
    )
    sliding_window: int | None = flag(
        None, "How many tokens back attention sees, itself included.", at_least=1
    )
    interleave_sliding_window: int | None = flag(
        None, "The same in the first, third, ... layer only.", at_least=1
    )
    cla_share_factor: int = flag(
        1, "Layers that share keys and values.", effect=unsupported("cross-layer attention")
    )
    share_kvstates: bool = flag(
        False, "Share keys and values over layers.", effect=unsupported("cross-layer attention")
    )
    no_post_layer_norm: bool = flag(
        False, "No final norm.", effect=unsupported("models without a final norm")
    )
    input_layernorm_in_fp32: bool = flag(
        False, "Run the input norm in fp32.", effect=unsupported("fp32 input norm")
    )
    rmsnorm_weight_in_fp32: bool = flag(
        False, "Keep norm weights in fp32.", effect=unsupported("fp32 norm weights")
    )
    add_dense_bias: bool = flag(
        False, "Bias in the attention output.", effect=unsupported("attention output bias")
    )
    add_output_layer_bias: bool = flag(
        False, "Bias in the output layer.", effect=unsupported("output layer bias")
    )
    skip_bias_add: bool = flag(
        True,
        "Add biases inside the linear layers.",
        off=("--skip-bias-add",),
        effect=unsupported("biases added in the linear layer"),
    )
    mtp_num_layers: int | None = flag(
        None,
        "Layers of multi-token prediction. Left out: as many as the model has; 0: train without.",
        at_least=0,
    )
    mtp_loss_scaling_factor: float = flag(
        0.1, "Weight of the multi-token loss.", effect=part_of("mtp_num_layers")
    )
