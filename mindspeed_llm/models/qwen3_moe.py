"""Qwen3 mixture of experts: Qwen3's attention, and experts without a shared one."""

from mindspeed_llm.models import decoder, moe
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

QWEN3_MOE = Family(
    name="qwen3-moe",
    aliases=("qwen3_moe",),
    hf_model_type="qwen3_moe",
    hf_architecture="Qwen3MoeForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            decoder.HEAD_DIM,
            # transformers 5 writes the second name.
            Field("num_experts", "experts.num_experts", also=("num_local_experts",), default=128),
            *moe.QWEN_FIELDS,
        ),
        fixed=(
            decoder.SILU,
            *decoder.NO_SLIDING_WINDOW,
            Fixed("attention_bias", (False,)),
            Fixed("decoder_sparse_step", (1,)),
        ),
        inactive=("sliding_window", *moe.TRAINING_KEYS),
        constants={"qk_layernorm": True},
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
