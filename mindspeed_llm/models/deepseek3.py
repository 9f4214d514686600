"""DeepSeek-V3 and R1 (arXiv:2412.19437): V2's layers, sigmoid router, multi-token prediction."""

from typing import Any

from mindspeed_llm.models import decoder, deepseek2, latent, moe, mtp
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import Config, ConfigMap, Field, Fixed
from mindspeed_llm.models.shape import ModelShape

# Balanced by a bias of each expert rather than by a loss.
ROUTER_FIXED = (
    Fixed("norm_topk_prob", (True,)),
    Fixed("scoring_func", ("sigmoid",)),
    Fixed("topk_method", ("noaux_tc",)),
)
ROUTER: dict[str, Any] = {
    "experts.moe_router_score_function": "sigmoid",
    "experts.moe_router_enable_expert_bias": True,
    "experts.norm_topk_prob": True,
    "experts.group_score_topk": lambda v: 2 if v["experts.moe_router_num_groups"] else 1,
}


def group_fields(groups: int, chosen: int) -> tuple[Field, Field]:
    """Groups of experts; a single one is none. The arguments are what a silent file means."""

    def read(value: int, config: Config) -> int | None:
        return value if (config.get("n_group") or groups) > 1 else None

    def count(shape: ModelShape) -> int:
        return moe.experts_of(shape).moe_router_num_groups or 1

    def used(shape: ModelShape) -> int:
        return moe.experts_of(shape).moe_router_group_topk or 1

    return (
        Field("n_group", "experts.moe_router_num_groups", default=groups, read=read, write=count),
        Field("topk_group", "experts.moe_router_group_topk", default=chosen, read=read, write=used),
    )


DEEPSEEK3 = Family(
    name="deepseek3",
    hf_model_type="deepseek_v3",
    hf_architecture="DeepseekV3ForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            *latent.FIELDS,
            *deepseek2.EXPERT_FIELDS,
            *group_fields(groups=8, chosen=4),
            mtp.FIELD,
        ),
        fixed=(decoder.SILU, *latent.FIXED, *ROUTER_FIXED, Fixed("moe_layer_freq", (1,))),
        inactive=(*latent.INACTIVE, *deepseek2.UNUSED),
        constants={**latent.CONSTANTS, **ROUTER},
        rope_types=("yarn",),
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
