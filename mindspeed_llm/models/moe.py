"""Mixture of experts: what the families share of config fields, weight map and module specs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.models.hf_config import Config, Field
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.mapping import Mapping, layer_entry
from mindspeed_llm.models.shape import Experts, ModelShape
from mindspeed_llm.models.splits import GATED_COLUMN, ROW
from mindspeed_llm.models.transforms import FUSE_GATE_UP

if TYPE_CHECKING:
    from megatron.core.models.backends import BackendSpecProvider
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

# In torch_dist checkpoints the norm before a dense MLP has the name that it has in Megatron's
# fused norm + linear layer; the norm before experts keeps its own.
DENSE_KEYS_MAP = {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}

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


def config_fields(shape: ModelShape, layout: PipelineLayout) -> dict[str, Any]:
    """Fields of Megatron's ``TransformerConfig`` that describe the experts; none without any."""
    if shape.experts is None:
        return {}
    experts = shape.experts
    sigmoid = experts.moe_router_score_function == "sigmoid"
    return {
        "num_moe_experts": experts.num_experts,
        "moe_router_topk": experts.moe_router_topk,
        "moe_ffn_hidden_size": experts.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": experts.moe_shared_expert_intermediate_size or None,
        "moe_shared_expert_gate": experts.shared_expert_gate,
        "moe_layer_freq": [
            int(place is not None and not shape.is_dense(place)) for place in layout.places
        ],
        "moe_router_score_function": experts.moe_router_score_function,
        "moe_router_pre_softmax": not sigmoid,
        "moe_router_topk_scaling_factor": experts.moe_router_topk_scaling_factor,
        "moe_router_enable_expert_bias": experts.moe_router_enable_expert_bias,
        "moe_router_num_groups": experts.moe_router_num_groups,
        "moe_router_group_topk": experts.moe_router_group_topk,
    }


def set_routing(config: TransformerConfig, shape: ModelShape) -> None:
    """Set what the router reads and Megatron's config has no field for."""
    if shape.experts is not None:
        config.moe_norm_topk_prob = shape.experts.norm_topk_prob
        config.moe_router_group_score_topk = shape.experts.group_score_topk


def mlp_spec(backend: BackendSpecProvider) -> ModuleSpec:
    """The module spec of router, routed experts and shared expert."""
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec_for_backend

    from mindspeed.moe.router import Router

    # Whether there are experts is all that the number decides.
    spec = get_moe_module_spec_for_backend(backend=backend, num_experts=1)
    spec.submodules.router = Router
    return spec


def chunk_spec(
    spec: ModuleSpec, shape: ModelShape, places: Sequence[int | None]
) -> ModuleSpec | TransformerBlockSubmodules:
    """The spec of a model chunk with these layers; ``spec`` itself if all of them are alike."""
    dense = [place is not None and shape.is_dense(place) for place in places]
    if shape.experts is None or not any(dense):
        return spec
    from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    from mindspeed.transformer.norm import Norm
    from mindspeed.transformer.spec_provider import MindSpeedSpecProvider

    submodules = replace(
        spec.submodules,
        mlp=get_mlp_module_spec_for_backend(backend=MindSpeedSpecProvider()),
        sharded_state_dict_keys_map={
            **spec.submodules.sharded_state_dict_keys_map,
            **DENSE_KEYS_MAP,
        },
    )
    dense_spec = replace(spec, submodules=submodules)
    return TransformerBlockSubmodules(
        layer_specs=[dense_spec if is_dense else spec for is_dense in dense], layer_norm=Norm
    )
