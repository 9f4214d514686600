"""A shape under the names of Megatron's flags, and back: for flags given and checkpoints' ``args``.

This is the one list of what each flag says about the architecture. Flags that a checkpoint of
another project lacks have Megatron's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from mindspeed_llm.models import rope_scaling
from mindspeed_llm.models.shape import Experts, LatentAttention, ModelShape

Flags = Mapping[str, Any]

# Flags whose value is the shape field of the same name.
_SAME = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "max_position_embeddings",
    "norm_epsilon",
    "rotary_base",
    "rotary_percent",
    "untie_embeddings_and_output_weights",
    "add_qkv_bias",
    "qk_layernorm",
    "add_rmsnorm_offset",
    "post_norm",
    "use_glm_rope",
    "embedding_multiplier_scale",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "output_logit_softcapping",
)
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads")
_EXPERTS = tuple(field.name for field in fields(Experts) if field.name != "group_score_topk")
_LATENT = tuple(field.name for field in fields(LatentAttention))


class MissingFlags(Exception):
    """Flags without which no shape is known, as ``names``."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def to_flags(shape: ModelShape) -> dict[str, Any]:
    """What each flag says of a shape; None where it has no part in it."""
    silu = shape.activation == "silu"
    window = shape.sliding_window
    return {
        **{name: getattr(shape, name) for name in _SAME},
        "group_query_attention": shape.num_query_groups != shape.num_attention_heads,
        "swiglu": silu,
        "geglu": not silu,
        "gelu_tanh": not silu,
        "sliding_window": None if shape.interleave_sliding_window else window,
        "interleave_sliding_window": window if shape.interleave_sliding_window else None,
        "mtp_num_layers": shape.mtp_num_layers,
        **_scaling_flags(shape.rope_scaling),
        "multi_latent_attention": shape.latent is not None,
        **{name: getattr(shape.latent, name, None) for name in _LATENT},
        **{name: getattr(shape.experts, name, None) for name in _EXPERTS},
        "n_shared_experts": _shared_experts(shape.experts),
    }


def from_flags(flags: Flags, vocab_size: int | None = None, seq_length: int | None = None):
    """The shape that flags describe.

    Args:
        vocab_size: where the flags lack it (a checkpoint of Megatron's knows the padded size only).
        seq_length: takes the place of ``max_position_embeddings`` where that is missing.

    Raises:
        MissingFlags: something without a default is missing.
    """
    vocab = flags.get("vocab_size") or vocab_size or flags.get("padded_vocab_size")
    positions = flags.get("max_position_embeddings") or seq_length or 0
    missing = [name for name in _REQUIRED if flags.get(name) is None]
    missing += [] if vocab else ["vocab_size"]
    missing += [] if positions else ["max_position_embeddings"]
    if missing:
        raise MissingFlags(missing)
    hidden, heads = flags["hidden_size"], flags["num_attention_heads"]
    values = {name: flags[name] for name in _SAME if flags.get(name) is not None}
    values |= {
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "ffn_hidden_size": flags.get("ffn_hidden_size") or _default_ffn(hidden),
        "num_query_groups": _groups(flags, heads),
        "kv_channels": flags.get("kv_channels") or hidden // heads,
        "activation": "gelu_tanh" if flags.get("geglu") or flags.get("gelu_tanh") else "silu",
        "sliding_window": flags.get("interleave_sliding_window") or flags.get("sliding_window"),
        "interleave_sliding_window": bool(flags.get("interleave_sliding_window")),
        "embedding_multiplier_scale": _embedding_scale(flags, hidden),
        "use_glm_rope": bool(flags.get("use_glm_rope") or flags.get("rotary_interleaved")),
        "add_rmsnorm_offset": bool(
            flags.get("add_rmsnorm_offset") or flags.get("layernorm_zero_centered_gamma")
        ),
        "add_qkv_bias": bool(flags.get("add_qkv_bias") or flags.get("add_qkv_bias_linear")),
        "mtp_num_layers": flags.get("mtp_num_layers") or 0,
        "rope_scaling": _scaling(flags, positions),
        "rotary_base": float(flags.get("rotary_base") or 10000.0),
        "latent": _latent(flags),
        "experts": _experts(flags),
    }
    return ModelShape(**values)


def _default_ffn(hidden_size: int) -> int:
    """Megatron's rule for a gated MLP: 8/3 of the hidden size, in steps of 64."""
    return int(4 * hidden_size * 2 / 3) // 64 * 64


def _embedding_scale(flags: Flags, hidden_size: int) -> float:
    if flags.get("input_embeds_norm"):
        return hidden_size**0.5
    return flags.get("embedding_multiplier_scale") or 1.0


def _groups(flags: Flags, heads: int) -> int:
    groups = flags.get("num_query_groups")
    return groups if groups and flags.get("group_query_attention", True) else heads


def _latent(flags: Flags) -> LatentAttention | None:
    if not flags.get("multi_latent_attention"):
        return None
    missing = [n for n in _LATENT if n != "q_lora_rank" and flags.get(n) is None]
    if missing:
        raise MissingFlags(missing)
    values: dict[str, Any] = {name: flags.get(name) for name in _LATENT}
    return LatentAttention(**values)


def _experts(flags: Flags) -> Experts | None:
    if not flags.get("num_experts"):
        return None
    values = {name: flags[name] for name in _EXPERTS if flags.get(name) is not None}
    width = values.setdefault("moe_ffn_hidden_size", flags.get("ffn_hidden_size"))
    if shared := flags.get("n_shared_experts"):
        values.setdefault("moe_shared_expert_intermediate_size", shared * width)
    values.setdefault("moe_router_topk", 2)
    if flags.get("norm_topk_prob") is None:
        # Megatron: softmax over the chosen ones, unless over all before the choice.
        values["norm_topk_prob"] = not flags.get("moe_router_pre_softmax")
    # No flag says it: DeepSeek-V3 and, with softmax scores, V2.
    two = flags.get("moe_router_group_topk") and flags.get("moe_router_score_function") == "sigmoid"
    return Experts(**values, group_score_topk=2 if two else 1)


def _shared_experts(experts: Experts | None) -> int | None:
    """The shared expert's width in units of a routed one's, where it is a multiple."""
    if experts is None:
        return None
    count, rest = divmod(
        experts.moe_shared_expert_intermediate_size or 0, experts.moe_ffn_hidden_size
    )
    return None if rest else count


def _scaling_flags(scaling: rope_scaling.Scaling | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "use_rope_scaling": isinstance(scaling, rope_scaling.RopeScaling),
        "rope_scaling_type": scaling.kind if scaling else None,
        "rope_scaling_factor": scaling.factor if scaling else None,
    }
    match scaling:
        case rope_scaling.RopeScaling():
            names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            values |= {name: getattr(scaling, name) for name in names}
        case rope_scaling.Yarn():
            values |= {
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "rope_scaling_mscale": scaling.mscale,
                "rope_scaling_mscale_all_dim": scaling.mscale_all_dim,
                _YARN_POSITIONS: scaling.original_max_position_embeddings,
            }
        case rope_scaling.LongRope():
            values |= {
                "short_factor": ",".join(map(str, scaling.short_factor)),
                "long_factor": ",".join(map(str, scaling.long_factor)),
                "original_max_position_embeddings": scaling.original_max_position_embeddings,
            }
    return values


_YARN_POSITIONS = "rope_scaling_original_max_position_embeddings"


def _scaling(flags: Flags, positions: int) -> rope_scaling.Scaling | None:
    kind = flags.get("rope_scaling_type") or ("llama3" if flags.get("use_rope_scaling") else None)
    original = flags.get("original_max_position_embeddings")
    if kind == "llama3":
        # Megatron-LM knows the factor only; the rest are the constants of its implementation.
        return rope_scaling.RopeScaling(
            factor=float(flags.get("rope_scaling_factor") or 8.0),
            low_freq_factor=float(flags.get("low_freq_factor") or 1.0),
            high_freq_factor=float(flags.get("high_freq_factor") or 4.0),
            original_max_position_embeddings=int(original or 8192),
        )
    if kind == "yarn":
        return rope_scaling.Yarn(
            factor=float(flags.get("rope_scaling_factor") or 1.0),
            original_max_position_embeddings=int(flags.get(_YARN_POSITIONS) or positions),
            beta_fast=float(flags.get("beta_fast") or 32.0),
            beta_slow=float(flags.get("beta_slow") or 1.0),
            mscale=flags.get("rope_scaling_mscale"),
            mscale_all_dim=flags.get("rope_scaling_mscale_all_dim") or None,
        )
    if kind == "longrope":
        missing = [name for name in ("short_factor", "long_factor") if not flags.get(name)]
        if missing:
            raise MissingFlags(missing)
        return rope_scaling.LongRope(
            factor=positions / original if original else float(flags["rope_scaling_factor"]),
            original_max_position_embeddings=int(original or positions),
            short_factor=_numbers(flags["short_factor"]),
            long_factor=_numbers(flags["long_factor"]),
        )
    return None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))
