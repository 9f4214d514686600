"""Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2's attention, experts, and a gated shared expert."""

import functools

from mindspeed_llm.models import decoder, moe
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

NAMES = decoder.HfNames(
    experts=moe.HfExpertNames(
        shared=(
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
            "mlp.shared_expert.down_proj",
        )
    )
)

QWEN2_MOE = Family(
    name="qwen2-moe",
    aliases=("qwen2_moe",),
    hf_model_type="qwen2_moe",
    hf_architecture="Qwen2MoeForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            decoder.HEAD_DIM,
            Field("qkv_bias", "add_qkv_bias", default=True),
            Field("num_experts", "experts.num_experts", default=60),
            *moe.QWEN_FIELDS,
            Field(
                "shared_expert_intermediate_size",
                "experts.moe_shared_expert_intermediate_size",
                default=5632,
            ),
        ),
        fixed=(
            decoder.SILU,
            *decoder.NO_SLIDING_WINDOW,
            Fixed("decoder_sparse_step", (1,)),
        ),
        inactive=("sliding_window", *moe.TRAINING_KEYS),
        constants={"experts.shared_expert_gate": True},
    ),
    weights=functools.partial(decoder.weight_map, names=NAMES),
    layer_spec=decoder.layer_spec,
)
