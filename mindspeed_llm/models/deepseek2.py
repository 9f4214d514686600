"""DeepSeek-V2 and V2-Lite (arXiv:2405.04434): latent attention, many small experts, shared ones."""

from mindspeed.errors import UserError
from mindspeed_llm.models import decoder, latent, moe
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import Config, ConfigMap, Field, Fixed
from mindspeed_llm.models.shape import ModelShape

# Keys of the published files that only training reads, or DeepSeek's own inference code.
UNUSED = ("aux_loss_alpha", "ep_size", "seq_aux", *moe.TRAINING_KEYS)


def _shared_width(count: int | None, config: Config) -> int | None:
    """The shared experts are one MLP as wide as all of them."""
    return count * config["moe_intermediate_size"] if count else None


def _shared_count(shape: ModelShape) -> int | None:
    experts = moe.experts_of(shape)
    width = experts.moe_shared_expert_intermediate_size
    return width // experts.moe_ffn_hidden_size if width else None


EXPERT_FIELDS = (
    Field("n_routed_experts", "experts.num_experts", also=("num_local_experts", "num_experts")),
    Field("num_experts_per_tok", "experts.moe_router_topk"),
    Field("moe_intermediate_size", "experts.moe_ffn_hidden_size"),
    Field(
        "n_shared_experts",
        "experts.moe_shared_expert_intermediate_size",
        read=_shared_width,
        write=_shared_count,
        nullable=True,
    ),
    Field("first_k_dense_replace", "experts.first_k_dense_replace", default=0),
    Field("routed_scaling_factor", "experts.moe_router_topk_scaling_factor", default=1.0),
)

_GREEDY, _IN_GROUPS = "greedy", "group_limited_greedy"


def _if_grouped(value: int | None, config: Config) -> int | None:
    """The numbers of groups are there, and mean nothing, where all experts compete."""
    method = config.get("topk_method") or _GREEDY
    if method not in (_GREEDY, _IN_GROUPS):
        raise UserError(
            f"topk_method is {method!r}; implemented for DeepSeek-V2: {_GREEDY!r}, {_IN_GROUPS!r}"
        )
    return value if method == _IN_GROUPS else None


def _method(shape: ModelShape) -> str:
    return _IN_GROUPS if moe.experts_of(shape).moe_router_num_groups else _GREEDY


DEEPSEEK2 = Family(
    name="deepseek2",
    aliases=("deepseek2-lite",),
    hf_model_type="deepseek_v2",
    hf_architecture="DeepseekV2ForCausalLM",
    config=ConfigMap(
        fields=(
            *decoder.CONFIG_FIELDS,
            *latent.FIELDS,
            *EXPERT_FIELDS,
            Field("n_group", "experts.moe_router_num_groups", nullable=True),
            Field("topk_group", "experts.moe_router_group_topk", read=_if_grouped, nullable=True),
            # Decides whether the number of groups, read before, counts.
            Field(
                "topk_method",
                "experts.moe_router_num_groups",
                default=_GREEDY,
                read=lambda _, config: _if_grouped(config.get("n_group"), config),
                write=_method,
            ),
        ),
        fixed=(
            decoder.SILU,
            *latent.FIXED,
            Fixed("mlp_bias", (False,)),
            Fixed("moe_layer_freq", (1,)),
            Fixed("norm_topk_prob", (False,)),
            Fixed("scoring_func", ("softmax",)),
        ),
        inactive=(*latent.INACTIVE, *UNUSED),
        constants={**latent.CONSTANTS, "experts.norm_topk_prob": False},
        rope_types=("yarn",),
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
