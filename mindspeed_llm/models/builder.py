"""From a shape and a layout to Megatron's config and this rank's part of the model."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import (
    MLATransformerConfig,
    TransformerConfig,
)

from mindspeed.errors import UserError
from mindspeed_llm.models import latent, moe, mtp, noop
from mindspeed_llm.models.gpt import GPTModel
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.rotary import set_concentration
from mindspeed_llm.models.shape import ModelShape, padded_query_groups

_ACTIVATIONS = {"silu": F.silu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh")}

LayerSpec: TypeAlias = ModuleSpec | Callable[[TransformerConfig], ModuleSpec]


def transformer_config(
    shape: ModelShape,
    layout: PipelineLayout,
    params_dtype: torch.dtype,
    **megatron: Any,
) -> TransformerConfig:
    """Megatron's config of a shape.

    Args:
        megatron: further fields of ``TransformerConfig`` (parallel sizes, recomputation, …).
    """
    noop.check_windows(shape, layout)
    virtual = layout.chunks if layout.chunks > 1 else None
    groups = padded_query_groups(shape, megatron.get("tensor_model_parallel_size", 1))
    scalar = shape.query_pre_attn_scalar
    fields = {
        "num_layers": len(layout.places),
        "hidden_size": shape.hidden_size,
        "ffn_hidden_size": shape.ffn_hidden_size,
        "num_attention_heads": shape.num_attention_heads // shape.num_query_groups * groups,
        "num_query_groups": groups,
        "kv_channels": shape.kv_channels,
        "softmax_scale": scalar**-0.5 if scalar else None,
        "window_size": (shape.sliding_window - 1, 0) if shape.sliding_window else None,
        "window_attn_skip_freq": 2 if shape.interleave_sliding_window else None,
        "rotary_interleaved": shape.use_glm_rope,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_epsilon,
        "layernorm_zero_centered_gamma": shape.add_rmsnorm_offset,
        "gated_linear_unit": True,
        "activation_func": _ACTIVATIONS[shape.activation],
        "add_bias_linear": False,
        "add_qkv_bias": shape.add_qkv_bias,
        "qk_layernorm": shape.qk_layernorm,
        "params_dtype": params_dtype,
        "fp16": params_dtype == torch.float16,
        "bf16": params_dtype == torch.bfloat16,
        "pipeline_model_parallel_size": layout.pipeline_parallel,
        "pipeline_dtype": params_dtype,
        "virtual_pipeline_model_parallel_size": None if layout.uneven else virtual,
        "pipeline_model_parallel_layout": (
            _megatron_layout(layout, shape.mtp_num_layers) if layout.uneven else None
        ),
        **mtp.config_fields(shape),
        **moe.config_fields(shape, layout),
    }
    if shape.activation != "silu":
        # Megatron's fused forms are SiLU and its own approximation of GELU.
        megatron["bias_activation_fusion"] = False
    config_class = TransformerConfig
    if shape.latent is not None:
        config_class, fields = MLATransformerConfig, fields | latent.config_fields(shape)
    config = config_class(**fields, **megatron)
    # What Megatron's config has no field for.
    config.attn_logit_softcapping = shape.attn_logit_softcapping
    config.post_norm = shape.post_norm
    moe.set_routing(config, shape)
    if shape.rope_scaling is not None:
        set_concentration(config, shape.rope_scaling.attention_factor)
    return config


def _megatron_layout(layout: PipelineLayout, mtp_layers: int) -> list[list[str]]:
    """Megatron's description of an uneven layout: the parts of each (chunk, stage) in order."""
    parts = []
    for chunk in range(layout.chunks):
        for stage, chunks in enumerate(layout.stages):
            layers = ["decoder"] * len(chunks[chunk])
            first = ["embedding"] if layout.is_first(stage, chunk) else []
            end = ["mtp"] * mtp_layers + ["loss"]
            last = end if layout.is_last(stage, chunk) else []
            parts.append(first + layers + last)
    return parts


def build_model(
    shape: ModelShape,
    config: TransformerConfig,
    layout: PipelineLayout,
    layer_spec: LayerSpec,
    padded_vocab_size: int,
) -> list[GPTModel]:
    """This rank's model chunks (one without virtual pipeline stages), on the current device.

    Needs Megatron's process groups (``parallel_state``) to be initialised.
    """
    spec = layer_spec if isinstance(layer_spec, ModuleSpec) else layer_spec(config)
    ahead = mtp.block_spec(config, spec)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    return [
        GPTModel(
            shape=shape,
            config=config,
            transformer_layer_spec=_chunk_spec(spec, shape, layout.stages[stage][chunk]),
            vocab_size=padded_vocab_size,
            max_sequence_length=shape.max_position_embeddings,
            pre_process=layout.is_first(stage, chunk),
            post_process=layout.is_last(stage, chunk),
            parallel_output=True,
            share_embeddings_and_output_weights=shape.tied,
            position_embedding_type="rope",
            rotary_base=shape.rotary_base,
            rotary_percent=shape.rotary_percent,
            mtp_block_spec=ahead if layout.is_last(stage, chunk) else None,
            vp_stage=chunk if layout.chunks > 1 else None,
        )
        for chunk in range(layout.chunks)
    ]


def _chunk_spec(spec: ModuleSpec, shape: ModelShape, places: Sequence[int | None]):
    return noop.chunk_spec(moe.chunk_spec(spec, shape, places), places)


def import_layer_spec(module: str, name: str) -> LayerSpec:
    """What ``--spec MODULE NAME`` points at: a module spec, or a function of the config.

    Raises:
        UserError: if the module or the name does not exist.
    """
    try:
        spec = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"--spec {module} {name}: no module {error.name!r}; the specs of the supported "
            "families are in mindspeed_llm/tasks/models/spec/"
        ) from None
    except AttributeError:
        raise UserError(f"--spec {module} {name}: the module has no {name!r}") from None
    if not (isinstance(spec, ModuleSpec) or callable(spec)):
        raise UserError(f"--spec {module} {name}: neither a ModuleSpec nor a function of a config")
    return spec
