"""GLM-4-0414 and GLM-Z1: outputs are normalised too, half of each head is rotated in pairs."""

import functools

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field

NAMES = decoder.HfNames(
    gate_up=("mlp.gate_up_proj",),
    post_attn_norm="post_self_attn_layernorm",
    post_mlp_layernorm="post_mlp_layernorm",
)

GLM4 = Family(
    name="glm4",
    aliases=("glm4_9b", "glm4_32b"),
    hf_model_type="glm4",
    hf_architecture="Glm4ForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            Field("head_dim", "kv_channels", default=128),
            Field("attention_bias", "add_qkv_bias", default=False),
        ),
        fixed=(decoder.SILU,),
        constants={"post_norm": True, "use_glm_rope": True},
        default_rotary_percent=0.5,
    ),
    weights=functools.partial(decoder.weight_map, names=NAMES),
    layer_spec=decoder.layer_spec,
)
