"""GLM-4.5 and 4.5-Air: grouped heads, half of each rotated; DeepSeek-V3's experts and router."""

from mindspeed_llm.models import decoder, deepseek2, deepseek3, moe, mtp
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field

GLM45 = Family(
    name="glm45-air",
    aliases=("glm45",),
    hf_model_type="glm4_moe",
    hf_architecture="Glm4MoeForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            decoder.HEAD_DIM,
            Field("attention_bias", "add_qkv_bias", default=False),
            Field("use_qk_norm", "qk_layernorm", default=False),
            *deepseek2.EXPERT_FIELDS,
            *deepseek3.group_fields(groups=1, chosen=1),
            mtp.FIELD,
        ),
        fixed=(decoder.SILU, *deepseek3.ROUTER_FIXED),
        inactive=moe.TRAINING_KEYS,
        constants=deepseek3.ROUTER,
        default_rotary_percent=0.5,
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
