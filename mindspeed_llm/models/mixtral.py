"""Mixtral (arXiv:2401.04088): Mistral's attention, and two of eight experts."""

import functools

from mindspeed_llm.models import decoder, moe
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

NAMES = decoder.HfNames(
    experts=moe.HfExpertNames(
        router="block_sparse_moe.gate",
        expert=(
            "block_sparse_moe.experts.#.w1",
            "block_sparse_moe.experts.#.w3",
            "block_sparse_moe.experts.#.w2",
        ),
    )
)

MIXTRAL = Family(
    name="mixtral",
    hf_model_type="mixtral",
    hf_architecture="MixtralForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            decoder.HEAD_DIM,
            decoder.sliding_window(),
            Field("num_local_experts", "experts.num_experts", default=8),
            Field("num_experts_per_tok", "experts.moe_router_topk", default=2),
            Field("intermediate_size", "experts.moe_ffn_hidden_size"),
        ),
        fixed=(decoder.SILU, Fixed("router_jitter_noise", (0.0,))),
        inactive=moe.TRAINING_KEYS,
        default_rope_theta=1000000.0,
    ),
    weights=functools.partial(decoder.weight_map, names=NAMES),
    layer_spec=decoder.layer_spec,
)
