"""Parts that the Llama-like families share: their config fields, weight map and layer spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mindspeed_llm.models import latent, mtp
from mindspeed_llm.models.hf_config import Config, Field, Fixed
from mindspeed_llm.models.mapping import Mapping, WeightMap, layer_entry
from mindspeed_llm.models.moe import DENSE_KEYS_MAP, HfExpertNames, expert_entries, mlp_spec
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import (
    GATED_COLUMN,
    HEAD_COLUMNS,
    HEAD_ROWS,
    ROW,
    VOCAB_ROWS,
)
from mindspeed_llm.models.transforms import (
    FUSE_GATE_UP,
    FUSE_QKV,
    REGROUP_QKV,
    RENAME,
    SHARED,
)

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

CONFIG_FIELDS = (
    Field("num_hidden_layers", "num_layers"),
    Field("hidden_size", "hidden_size"),
    Field("intermediate_size", "ffn_hidden_size"),
    Field("num_attention_heads", "num_attention_heads"),
    Field("num_key_value_heads", "num_query_groups"),
    Field("vocab_size", "vocab_size"),
    Field("max_position_embeddings", "max_position_embeddings"),
    Field("rms_norm_eps", "norm_epsilon", default=1e-6),
)
HEAD_DIM = Field("head_dim", "kv_channels")
SILU = Fixed("hidden_act", ("silu",))
_FUSED_NORM = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
NO_SLIDING_WINDOW = (Fixed("use_sliding_window", (False,)),)


def sliding_window(default: int | None = None) -> Field:
    """The width of the attention window; one that no sequence reaches is none."""

    def read(window: int | None, config: Config) -> int | None:
        return window if window and window < config["max_position_embeddings"] else None

    return Field("sliding_window", "sliding_window", default=default, read=read, nullable=True)


def _hidden(shape: ModelShape) -> tuple[int, ...]:
    return (shape.hidden_size,)


def _qkv_rows(shape: ModelShape) -> int:
    return shape.query_size + 2 * shape.kv_size


@dataclass(frozen=True)
class HfNames:
    """Hugging Face's names within a layer, where families differ; one qkv name if it is fused."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    pre_mlp_layernorm: str = "post_attention_layernorm"
    post_attn_norm: str = ""
    post_mlp_layernorm: str = ""
    experts: HfExpertNames = field(default_factory=HfExpertNames)


def weight_map(shape: ModelShape, names: HfNames = HfNames()) -> WeightMap:
    """The table of a decoder with fused QKV and gated MLP on Megatron's side.

    QKV biases, query/key norms, norms of outputs, latent attention, experts, layers that predict
    further ahead and a separate output layer appear if the shape has them.
    """
    table = Mapping(
        "embedding.word_embeddings.weight",
        ("model.embed_tokens.weight", *mtp.copies(shape, "embed_tokens.weight")),
        lambda s: (s.vocab_size, s.hidden_size),
        transform=SHARED,
        split=VOCAB_ROWS,
    )
    end = [Mapping("decoder.final_layernorm.weight", ("model.norm.weight",), _hidden)]
    if not shape.tied:
        end.append(
            Mapping(
                "output_layer.weight",
                ("lm_head.weight", *mtp.copies(shape, "shared_head.head.weight")),
                lambda s: (s.vocab_size, s.hidden_size),
                transform=SHARED,
                split=VOCAB_ROWS,
            )
        )
    layer = [*norm_entries(shape, names), *attention_entries(shape, names)]
    if shape.experts is not None:
        layer += expert_entries(shape, names.experts)
    if shape.experts is None or shape.experts.first_k_dense_replace:
        layer += mlp_entries(names)
    return WeightMap((table, *layer, *end, *mtp.entries(shape, layer)))


def norm_entries(shape: ModelShape, names: HfNames) -> list[Mapping]:
    """The norms around attention and MLP."""
    norms = {"input_layernorm": "input_layernorm", "pre_mlp_layernorm": names.pre_mlp_layernorm}
    if shape.post_norm:
        norms["post_attn_norm"] = names.post_attn_norm
        norms["post_mlp_layernorm"] = names.post_mlp_layernorm
    return [layer_entry(f"{ours}.weight", (f"{hf}.weight",), _hidden) for ours, hf in norms.items()]


def attention_entries(shape: ModelShape, names: HfNames) -> list[Mapping]:
    """Attention: latent, or with grouped heads."""
    if shape.latent is not None:
        return latent.attention_entries(shape)
    fuse = FUSE_QKV if len(names.qkv) == 3 else REGROUP_QKV
    entries = [
        layer_entry(
            "self_attention.linear_qkv.weight",
            tuple(f"{name}.weight" for name in names.qkv),
            lambda s: (_qkv_rows(s), s.hidden_size),
            transform=fuse,
            split=HEAD_ROWS,
        ),
        layer_entry(
            "self_attention.linear_proj.weight",
            ("self_attn.o_proj.weight",),
            lambda s: (s.hidden_size, s.query_size),
            split=HEAD_COLUMNS,
        ),
    ]
    if shape.add_qkv_bias:
        entries.append(
            layer_entry(
                "self_attention.linear_qkv.bias",
                tuple(f"{name}.bias" for name in names.qkv),
                lambda s: (_qkv_rows(s),),
                transform=fuse,
                split=HEAD_ROWS,
            )
        )
    if shape.qk_layernorm:
        entries += [
            layer_entry(
                f"self_attention.{letter}_layernorm.weight",
                (f"self_attn.{letter}_norm.weight",),
                lambda s: (s.kv_channels,),
            )
            for letter in "qk"
        ]
    return entries


def mlp_entries(names: HfNames) -> list[Mapping]:
    """The gated MLP of the layers without experts."""
    return [
        layer_entry(
            "mlp.linear_fc1.weight",
            tuple(f"{name}.weight" for name in names.gate_up),
            lambda s: (2 * s.ffn_hidden_size, s.hidden_size),
            transform=FUSE_GATE_UP if len(names.gate_up) == 2 else RENAME,
            split=GATED_COLUMN,
            layers=ModelShape.is_dense,
        ),
        layer_entry(
            "mlp.linear_fc2.weight",
            ("mlp.down_proj.weight",),
            lambda s: (s.hidden_size, s.ffn_hidden_size),
            split=ROW,
            layers=ModelShape.is_dense,
        ),
    ]


def attention_spec(config: TransformerConfig) -> ModuleSpec:
    """Megatron's module spec of attention with grouped heads; query/key norms if asked for."""
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.spec_utils import ModuleSpec

    from mindspeed.transformer.spec_provider import MindSpeedSpecProvider

    backend = MindSpeedSpecProvider()
    norm = backend.layer_norm(rms_norm=config.normalization == "RMSNorm", for_qk=True)
    qk_norm = norm if config.qk_layernorm else IdentityOp
    return ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=backend.column_parallel_linear(),
            core_attention=backend.core_attention(),
            linear_proj=backend.row_parallel_linear(),
            q_layernorm=qk_norm,
            k_layernorm=qk_norm,
        ),
    )


def layer_spec(config: TransformerConfig) -> ModuleSpec:
    """Megatron's module spec of one layer, with what the config asks for."""
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import (
        TransformerLayer,
        TransformerLayerSubmodules,
    )

    from mindspeed.transformer.spec_provider import MindSpeedSpecProvider

    backend = MindSpeedSpecProvider()
    norm = backend.layer_norm(rms_norm=config.normalization == "RMSNorm")
    grouped = not config.multi_latent_attention
    experts = config.num_moe_experts is not None
    layer = {
        "input_layernorm": norm,
        "self_attention": attention_spec(config) if grouped else latent.attention_spec(config),
        "self_attn_bda": get_bias_dropout_add,
        "pre_mlp_layernorm": norm,
        "mlp": mlp_spec(backend) if experts else get_mlp_module_spec_for_backend(backend=backend),
        "mlp_bda": get_bias_dropout_add,
        # torch_dist checkpoints use the names of Megatron's fused norm + linear layers.
        "sharded_state_dict_keys_map": {
            **(_FUSED_NORM if grouped else latent.FUSED_NORMS),
            **({} if experts else DENSE_KEYS_MAP),
        },
    }
    if not getattr(config, "post_norm", False):
        return ModuleSpec(TransformerLayer, submodules=TransformerLayerSubmodules(**layer))
    from mindspeed_llm.models.sandwich import SandwichLayer, SandwichLayerSubmodules

    norms = {"post_attn_norm": norm, "post_mlp_layernorm": norm}
    return ModuleSpec(SandwichLayer, submodules=SandwichLayerSubmodules(**layer, **norms))
