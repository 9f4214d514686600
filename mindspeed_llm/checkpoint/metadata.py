"""The ``args`` of a Megatron checkpoint: written in plain values, read from ours or Megatron's."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch

from mindspeed.errors import UserError
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.registry import family_of_shape, get_family
from mindspeed_llm.models.shape import ModelShape, RopeScaling
from mindspeed_llm.models.splits import TensorParallel

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Values of ``--params-dtype`` and the types they mean."""
DTYPE_SHORT = {dtype: name for name, dtype in DTYPES.items()}

# Values that Megatron's flags of the same name must have for the families here; what they stand
# for when a checkpoint says otherwise.
_REQUIRED = {
    "normalization": "RMSNorm",
    "swiglu": True,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "num_experts": None,
    "multi_latent_attention": False,
    "mtp_num_layers": None,
}


@dataclass(frozen=True)
class CheckpointLayout:
    """How a Megatron checkpoint is divided over ranks."""

    tensor_parallel: int
    pipeline: PipelineLayout
    padded_vocab_size: int

    def at(self, shape: ModelShape, rank: int) -> TensorParallel:
        """The position of a tensor-parallel rank."""
        return TensorParallel.of(shape, rank, self.tensor_parallel, self.padded_vocab_size)

    def describe(self) -> str:
        """``TP2 PP4 (15,15,15,16)``: sizes, and the layers of each stage if uneven."""
        text = f"TP{self.tensor_parallel} PP{self.pipeline.pipeline_parallel}"
        if self.pipeline.chunks > 1:
            text += f" VPP{self.pipeline.chunks}"
        return text + (f" ({self.pipeline.describe()})" if self.pipeline.uneven else "")


def checkpoint_args(
    family: Family, shape: ModelShape, layout: CheckpointLayout, params_dtype: str
) -> argparse.Namespace:
    """What a checkpoint says of itself, under the names of Megatron's flags, as plain values.

    Args:
        params_dtype: ``bf16``, ``fp16`` or ``fp32``.
    """
    values = shape.to_dict()
    scaling = shape.rope_scaling
    values.pop("rope_scaling")
    pipeline = layout.pipeline
    chunked = pipeline.chunks > 1
    return argparse.Namespace(
        **values,
        use_rope_scaling=scaling is not None,
        rope_scaling_type="llama3" if scaling else None,
        rope_scaling_factor=scaling.factor if scaling else None,
        low_freq_factor=scaling.low_freq_factor if scaling else None,
        high_freq_factor=scaling.high_freq_factor if scaling else None,
        original_max_position_embeddings=(
            scaling.original_max_position_embeddings if scaling else None
        ),
        group_query_attention=shape.num_query_groups != shape.num_attention_heads,
        seq_length=shape.max_position_embeddings,
        padded_vocab_size=layout.padded_vocab_size,
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=pipeline.pipeline_parallel,
        expert_model_parallel_size=1,
        virtual_pipeline_model_parallel_size=pipeline.chunks if chunked else None,
        num_layers_per_virtual_pipeline_stage=(len(pipeline.stages[0][0]) if chunked else None),
        num_layer_list=pipeline.describe() if pipeline.uneven else None,
        model_type_hf=family.name,
        params_dtype=params_dtype,
        bf16=params_dtype == "bf16",
        fp16=params_dtype == "fp16",
        transformer_impl="local",
        use_mcore_models=True,
        add_position_embedding=False,
        **_REQUIRED,
    )


def read_metadata(
    args: argparse.Namespace, vocab_size: int | None = None
) -> tuple[Family, ModelShape, CheckpointLayout]:
    """Family, shape and layout that a checkpoint's ``args`` describe; the inverse of the above.

    Args:
        args: ours, or those of a checkpoint that Megatron-LM or MindSpeed-LLM wrote.
        vocab_size: true number of vocabulary rows, where ``args`` lack it (Megatron's do).

    Raises:
        UserError: if a value needed is missing, or the model has parts no family here has.
    """
    values = vars(args)
    shape = _shape(values, vocab_size)
    name = values.get("model_type_hf")
    family = get_family(name) if name else family_of_shape(shape)
    padded = values.get("padded_vocab_size") or shape.vocab_size
    if padded < shape.vocab_size:
        raise UserError(
            f"the vocabulary has {shape.vocab_size} rows, the checkpoint's table only {padded}; "
            "they belong to different models"
        )
    layout = CheckpointLayout(
        tensor_parallel=values.get("tensor_model_parallel_size") or 1,
        pipeline=_pipeline(values, shape.num_layers),
        padded_vocab_size=padded,
    )
    return family, shape, layout


def _shape(values: dict[str, Any], vocab_size: int | None) -> ModelShape:
    _refuse_other_models(values)
    heads = _need(values, "num_attention_heads")
    hidden = _need(values, "hidden_size")
    grouped = values.get("group_query_attention", values.get("num_query_groups") is not None)
    groups = values.get("num_query_groups") if grouped else heads
    return ModelShape(
        num_layers=_need(values, "num_layers"),
        hidden_size=hidden,
        ffn_hidden_size=_need(values, "ffn_hidden_size"),
        num_attention_heads=heads,
        num_query_groups=groups or heads,
        kv_channels=values.get("kv_channels") or hidden // heads,
        vocab_size=values.get("vocab_size") or vocab_size or _need(values, "padded_vocab_size"),
        max_position_embeddings=_need(values, "max_position_embeddings"),
        norm_epsilon=values.get("norm_epsilon", 1e-5),
        rotary_base=float(values.get("rotary_base", 10000.0)),
        rotary_percent=float(values.get("rotary_percent", 1.0)),
        rope_scaling=_rope_scaling(values),
        untie_embeddings_and_output_weights=bool(
            values.get("untie_embeddings_and_output_weights", False)
        ),
        add_qkv_bias=bool(values.get("add_qkv_bias", values.get("add_qkv_bias_linear", False))),
        qk_layernorm=bool(values.get("qk_layernorm", False)),
    )


def _refuse_other_models(values: dict[str, Any]) -> None:
    other = [
        f"{name}={values[name]!r}"
        for name, required in _REQUIRED.items()
        if name in values and (values[name] or None) != (required or None)
    ]
    if other:
        raise UserError(
            f"the checkpoint's args say {', '.join(other)}: no family here has such a model yet "
            "(supported: RMSNorm, rotary positions, gated MLP, no experts)"
        )


def _need(values: dict[str, Any], name: str) -> Any:
    value = values.get(name)
    if value is None:
        raise UserError(
            f"the checkpoint's args have no {name}, so its model shape is unknown; give the "
            "original config.json (--hf-cfg-dir when converting, --hf-config when training)"
        )
    return value


def _rope_scaling(values: dict[str, Any]) -> RopeScaling | None:
    if not values.get("use_rope_scaling") and values.get("rope_scaling_type") != "llama3":
        return None
    # Megatron-LM stores the factor only; the rest are the constants of its implementation.
    return RopeScaling(
        factor=float(values.get("rope_scaling_factor") or 8.0),
        low_freq_factor=float(values.get("low_freq_factor") or 1.0),
        high_freq_factor=float(values.get("high_freq_factor") or 4.0),
        original_max_position_embeddings=int(
            values.get("original_max_position_embeddings") or 8192
        ),
    )


def _pipeline(values: dict[str, Any], num_layers: int) -> PipelineLayout:
    stages = values.get("pipeline_model_parallel_size") or 1
    per_chunk = values.get("num_layers_per_virtual_pipeline_stage")
    chunks = values.get("virtual_pipeline_model_parallel_size")
    if per_chunk is None and chunks and chunks > 1:
        per_chunk = num_layers // stages // chunks
    sizes = _layer_list(values, num_layers, stages)
    if stages == 1 or sizes is not None:
        per_chunk = None
    return PipelineLayout.build(num_layers, stages, per_chunk, sizes)


def _layer_list(values: dict[str, Any], num_layers: int, stages: int) -> tuple[int, ...] | None:
    listed = values.get("num_layer_list")
    if listed:
        parts = listed.split(",") if isinstance(listed, str) else listed
        return tuple(int(part) for part in parts)
    ends = [
        values.get("decoder_first_pipeline_num_layers"),
        values.get("decoder_last_pipeline_num_layers"),
    ]
    if ends == [None, None]:
        return None
    # Megatron's own way of uneven stages: the ends by number, the rest evenly.
    rest = num_layers - sum(n for n in ends if n is not None)
    inner = stages - sum(n is not None for n in ends)
    if inner and rest % inner:
        raise UserError(f"{rest} layers do not divide over the {inner} stages between the ends")
    sizes = [rest // inner if inner else 0] * stages
    for position, size in zip((0, -1), ends, strict=True):
        if size is not None:
            sizes[position] = size
    return tuple(sizes)
