"""Gemma 2 (arXiv:2408.00118): outputs are normalised too, scores and logits are soft-capped."""

import functools

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

NAMES = decoder.HfNames(
    pre_mlp_layernorm="pre_feedforward_layernorm",
    post_attn_norm="post_attention_layernorm",
    post_mlp_layernorm="post_feedforward_layernorm",
)

GEMMA2 = Family(
    name="gemma2",
    hf_model_type="gemma2",
    hf_architecture="Gemma2ForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            Field("head_dim", "kv_channels", default=256),
            Field("query_pre_attn_scalar", "query_pre_attn_scalar", default=256),
            Field("attn_logit_softcapping", "attn_logit_softcapping", default=50.0, nullable=True),
            Field(
                "final_logit_softcapping", "output_logit_softcapping", default=30.0, nullable=True
            ),
            decoder.sliding_window(default=4096),
        ),
        fixed=(
            Fixed("hidden_activation", ("gelu_pytorch_tanh",)),
            Fixed("hidden_act", ("gelu_pytorch_tanh",)),
            Fixed("attention_bias", (False,)),
            Fixed("use_bidirectional_attention", (False,)),
        ),
        constants={
            "post_norm": True,
            "add_rmsnorm_offset": True,
            "activation": "gelu_tanh",
            "embedding_multiplier_scale": lambda values: values["hidden_size"] ** 0.5,
            "interleave_sliding_window": lambda values: values["sliding_window"] is not None,
        },
        layer_type=lambda layer: "full_attention" if layer % 2 else "sliding_attention",
        tied_by_default=True,
    ),
    weights=functools.partial(decoder.weight_map, names=NAMES),
    layer_spec=decoder.layer_spec,
)
