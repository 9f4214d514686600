"""Multi-head latent attention: config fields, weight-map entries and module spec.

The weight map's names are Megatron-Core's own (``linear_q_down_proj``, ``linear_kv_up_proj``, …).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.models.hf_config import Field, Fixed
from mindspeed_llm.models.mapping import Mapping, layer_entry
from mindspeed_llm.models.rope_scaling import Yarn
from mindspeed_llm.models.shape import LatentAttention, ModelShape
from mindspeed_llm.models.splits import HEAD_COLUMNS, HEAD_ROWS

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

FIELDS = (
    Field("q_lora_rank", "latent.q_lora_rank", nullable=True),
    Field("kv_lora_rank", "latent.kv_lora_rank", default=512),
    Field("qk_nope_head_dim", "latent.qk_head_dim", default=128),
    Field("qk_rope_head_dim", "latent.qk_pos_emb_head_dim", default=64),
    Field("v_head_dim", "latent.v_head_dim", default=128),
)
FIXED = (Fixed("attention_bias", (False,)), Fixed("rope_interleave", (True,)))
# Sums and copies of the sizes above that transformers writes beside them.
INACTIVE = ("head_dim", "qk_head_dim")
CONSTANTS = {
    # Every head has a key and a value of its own, made from what the heads share.
    "num_query_groups": lambda values: values["num_attention_heads"],
    # Of no use here; what Megatron takes when it is not told.
    "kv_channels": lambda values: values["hidden_size"] // values["num_attention_heads"],
    "qk_layernorm": True,
}
# Of the norms of latents; the models do not take it from their config.json.
_EPSILON = 1e-6
# Keys of torch_dist checkpoints, which are those of Megatron's fused norm + linear layers.
FUSED_NORMS = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}


def latent_of(shape: ModelShape) -> LatentAttention:
    """The latent attention of a shape that has it."""
    assert shape.latent is not None
    return shape.latent


def _query_rows(shape: ModelShape) -> int:
    return shape.num_attention_heads * latent_of(shape).query_channels


def _key_value_rows(shape: ModelShape) -> int:
    latent = latent_of(shape)
    return shape.num_attention_heads * (latent.qk_head_dim + latent.v_head_dim)


def _query_entries(shape: ModelShape) -> list[Mapping]:
    rank = latent_of(shape).q_lora_rank
    if rank is None:
        return [
            layer_entry(
                "self_attention.linear_q_proj.weight",
                ("self_attn.q_proj.weight",),
                lambda s: (_query_rows(s), s.hidden_size),
                split=HEAD_ROWS,
            )
        ]
    return [
        layer_entry(
            "self_attention.linear_q_down_proj.weight",
            ("self_attn.q_a_proj.weight",),
            lambda s: (rank, s.hidden_size),
        ),
        layer_entry(
            "self_attention.q_layernorm.weight",
            ("self_attn.q_a_layernorm.weight",),
            lambda s: (rank,),
        ),
        layer_entry(
            "self_attention.linear_q_up_proj.weight",
            ("self_attn.q_b_proj.weight",),
            lambda s: (_query_rows(s), rank),
            split=HEAD_ROWS,
        ),
    ]


def attention_entries(shape: ModelShape) -> list[Mapping]:
    """Latent attention of every layer; the down-projections lie whole on each rank."""
    latent = latent_of(shape)
    rank = latent.kv_lora_rank
    return [
        *_query_entries(shape),
        layer_entry(
            "self_attention.linear_kv_down_proj.weight",
            ("self_attn.kv_a_proj_with_mqa.weight",),
            lambda s: (rank + latent.qk_pos_emb_head_dim, s.hidden_size),
        ),
        layer_entry(
            "self_attention.kv_layernorm.weight",
            ("self_attn.kv_a_layernorm.weight",),
            lambda s: (rank,),
        ),
        layer_entry(
            "self_attention.linear_kv_up_proj.weight",
            ("self_attn.kv_b_proj.weight",),
            lambda s: (_key_value_rows(s), rank),
            split=HEAD_ROWS,
        ),
        layer_entry(
            "self_attention.linear_proj.weight",
            ("self_attn.o_proj.weight",),
            lambda s: (s.hidden_size, s.num_attention_heads * latent.v_head_dim),
            split=HEAD_COLUMNS,
        ),
    ]


def config_fields(shape: ModelShape) -> dict[str, Any]:
    """Fields of Megatron's ``MLATransformerConfig``.

    Raises:
        UserError: for a rotary scaling that Megatron's latent attention does not have.
    """
    latent, scaling = latent_of(shape), shape.rope_scaling
    fields = {
        "q_lora_rank": latent.q_lora_rank,
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_head_dim": latent.qk_head_dim,
        "qk_pos_emb_head_dim": latent.qk_pos_emb_head_dim,
        "v_head_dim": latent.v_head_dim,
        "rotary_base": shape.rotary_base,
        # Megatron would sum the gradient of q_layernorm over the tensor-parallel ranks. That is
        # right for heads that lie on different ranks, but all of them hold this latent whole.
        "qk_layernorm": False,
    }
    if scaling is None:
        # A factor of 1 leaves the softmax scale alone.
        return {**fields, "rope_type": "rope", "rotary_scaling_factor": 1.0}
    if not isinstance(scaling, Yarn):
        raise UserError(f"rotary scaling {scaling.kind} is not implemented for latent attention")
    return {
        **fields,
        "rope_type": "yarn",
        "rotary_scaling_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": _mscale(scaling),
        "mscale_all_dim": scaling.mscale_all_dim or 0.0,
    }


def _mscale(scaling: Yarn) -> float:
    """The number from which Megatron computes ``scaling.attention_factor``.

    Megatron divides 0.1 · mscale · ln(factor) + 1 by the same of ``mscale_all_dim``.
    """
    if scaling.factor <= 1:
        if scaling.attention_factor != 1:
            raise UserError(
                f"YaRN with factor {scaling.factor:g} and attention_factor "
                f"{scaling.attention_factor:g} is not implemented for latent attention"
            )
        return 1.0
    step = 0.1 * math.log(scaling.factor)
    below = step * (scaling.mscale_all_dim or 0.0) + 1
    return (scaling.attention_factor * below - 1) / step


def attention_spec(config: TransformerConfig) -> ModuleSpec:
    """Megatron's module spec of the attention of one layer."""
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.multi_latent_attention import MLASelfAttentionSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec

    from mindspeed.transformer.latent_attention import LatentSelfAttention, ReplicatedLinear
    from mindspeed.transformer.spec_provider import MindSpeedSpecProvider

    backend = MindSpeedSpecProvider()
    norm = ModuleSpec(
        backend.layer_norm(rms_norm=config.normalization == "RMSNorm", for_qk=True),
        params={"eps": _EPSILON},
    )
    column = backend.column_parallel_linear()
    return ModuleSpec(
        module=LatentSelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=MLASelfAttentionSubmodules(
            linear_q_proj=column,
            linear_q_down_proj=ReplicatedLinear,
            linear_q_up_proj=column,
            linear_kv_down_proj=ReplicatedLinear,
            linear_kv_up_proj=column,
            core_attention=backend.core_attention(),
            linear_proj=backend.row_parallel_linear(),
            q_layernorm=norm,
            kv_layernorm=norm,
        ),
    )
