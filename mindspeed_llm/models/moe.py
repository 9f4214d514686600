"""Mixture of experts: the config fields and weight-map entries that the families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindspeed.errors import UserError
from mindspeed_llm.models.hf_config import Config, Field
from mindspeed_llm.models.mapping import Mapping, layer_entry
from mindspeed_llm.models.shape import Experts, ModelShape
from mindspeed_llm.models.splits import GATED_COLUMN, ROW
from mindspeed_llm.models.transforms import FUSE_GATE_UP

# Keys of the router that only training reads, where Megatron's flags decide.
TRAINING_KEYS = ("router_aux_loss_coef", "output_router_logits")


@dataclass(frozen=True)
class HfExpertNames:
    """Hugging Face's names within a layer with experts; gate, up and down where there are three."""

    router: str = "mlp.gate"
    expert_bias: str = "mlp.gate.e_score_correction_bias"
    expert: tuple[str, str, str] = (
        "mlp.experts.#.gate_proj",
        "mlp.experts.#.up_proj",
        "mlp.experts.#.down_proj",
    )
    shared: tuple[str, str, str] = (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_experts.down_proj",
    )
    shared_gate: str = "mlp.shared_expert_gate"


def experts_of(shape: ModelShape) -> Experts:
    """The experts of a shape that has some."""
    assert shape.experts is not None
    return shape.experts


def _leading_layers(layers: Sequence[int] | None, config: Config) -> int:
    """Qwen lists the layers without experts; implemented if these are the first ones."""
    layers = list(layers or ())
    if sorted(layers) != list(range(len(layers))):
        raise UserError(
            f"mlp_only_layers is {layers}; implemented: none, or the first layers without a gap"
        )
    return len(layers)


QWEN_FIELDS = (
    Field("num_experts_per_tok", "experts.moe_router_topk"),
    Field("moe_intermediate_size", "experts.moe_ffn_hidden_size"),
    Field("norm_topk_prob", "experts.norm_topk_prob", default=False),
    Field(
        "mlp_only_layers",
        "experts.first_k_dense_replace",
        read=_leading_layers,
        write=lambda s: list(range(experts_of(s).first_k_dense_replace)),
        nullable=True,
    ),
)


def has_experts(shape: ModelShape, layer: int) -> bool:
    """Whether a layer, counted from 0, has experts in the place of the MLP."""
    return not shape.is_dense(layer)


def expert_entries(shape: ModelShape, names: HfExpertNames) -> list[Mapping]:
    """Router, routed experts and shared expert of the layers that have them."""
    entries = [
        layer_entry(
            "mlp.router.weight",
            (f"{names.router}.weight",),
            lambda s: (experts_of(s).num_experts, s.hidden_size),
            layers=has_experts,
        )
    ]
    experts = experts_of(shape)
    if experts.moe_router_enable_expert_bias:
        entries.append(
            layer_entry(
                "mlp.router.expert_bias",
                (names.expert_bias,),
                lambda s: (experts_of(s).num_experts,),
                layers=has_experts,
                keep_fp32=True,
            )
        )
    width = experts.moe_ffn_hidden_size
    entries += _gated_mlp("mlp.experts.local_experts.#", names.expert, width)
    shared = experts.moe_shared_expert_intermediate_size
    if shared:
        entries += _gated_mlp("mlp.shared_experts", names.shared, shared)
    if shared and experts.shared_expert_gate:
        entries.append(
            layer_entry(
                "mlp.shared_experts.gate_weight",
                (f"{names.shared_gate}.weight",),
                lambda s: (1, s.hidden_size),
                layers=has_experts,
            )
        )
    return entries


def _gated_mlp(megatron: str, hf: tuple[str, str, str], width: int) -> list[Mapping]:
    gate, up, down = (f"{name}.weight" for name in hf)
    return [
        layer_entry(
            f"{megatron}.linear_fc1.weight",
            (gate, up),
            lambda s: (2 * width, s.hidden_size),
            transform=FUSE_GATE_UP,
            split=GATED_COLUMN,
            layers=has_experts,
        ),
        layer_entry(
            f"{megatron}.linear_fc2.weight",
            (down,),
            lambda s: (s.hidden_size, width),
            split=ROW,
            layers=has_experts,
        ),
    ]
