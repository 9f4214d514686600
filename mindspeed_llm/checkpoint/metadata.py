"""The ``args`` of a Megatron checkpoint: written in plain values, read from ours or Megatron's."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import torch

from mindspeed.errors import UserError
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.megatron_flags import MissingFlags, from_flags, to_flags
from mindspeed_llm.models.registry import family_of_shape, get_family
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import TensorParallel

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Values of ``--params-dtype`` and the types they mean."""
DTYPE_SHORT = {dtype: name for name, dtype in DTYPES.items()}

# Values that Megatron's flags of the same name must have for the families here; what they stand
# for when a checkpoint says otherwise.
_REQUIRED = {
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
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
    pipeline = layout.pipeline
    chunked = pipeline.chunks > 1
    return argparse.Namespace(
        **to_flags(shape),
        model_shape=json.dumps(shape.to_dict()),
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
    if values.get("model_shape"):
        return ModelShape.from_dict(json.loads(values["model_shape"]))
    _refuse_other_models(values)
    try:
        return from_flags(values, vocab_size)
    except MissingFlags as error:
        raise UserError(
            f"the checkpoint's args have no {error}, so its model shape is unknown; give the "
            "original config.json (--hf-cfg-dir when converting, --hf-config when training)"
        ) from None


def _refuse_other_models(values: dict[str, Any]) -> None:
    other = [
        f"{name}={values[name]!r}"
        for name, required in _REQUIRED.items()
        if name in values and (values[name] or None) != (required or None)
    ]
    if values.get("swiglu") is False and not values.get("geglu"):
        other.append("swiglu=False")
    if other:
        raise UserError(
            f"the checkpoint's args say {', '.join(other)}: no family here has such a model yet "
            "(supported: RMSNorm, rotary positions, a gated MLP, no biases)"
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
