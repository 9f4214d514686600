"""The ``args`` of a Megatron checkpoint: written in plain values, read from ours or Megatron's."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.paths import RankGrid
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.megatron_flags import MissingFlags, from_flags, to_flags
from mindspeed_llm.models.registry import family_of_shape, get_family
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import ExpertParallel, TensorParallel

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
class ExpertLayout:
    """How routed experts are divided over ranks, independently of the other layers.

    Attributes:
        parallel: groups of ranks that hold different experts.
        tensor_parallel: ranks that share each expert.
        grouped: whether a rank's experts of a layer are stacked into one tensor.
    """

    parallel: int = 1
    tensor_parallel: int = 1
    grouped: bool = False

    def describe(self, tensor_parallel: int) -> str:
        """What is not as in the other layers, e.g. `` EP4 ETP1 grouped``."""
        text = f" EP{self.parallel}" if self.parallel > 1 else ""
        text += f" ETP{self.tensor_parallel}" if self.tensor_parallel != tensor_parallel else ""
        return text + (" grouped" if self.grouped else "")


@dataclass(frozen=True)
class CheckpointLayout:
    """How a Megatron checkpoint is divided over ranks.

    Attributes:
        experts: None for a model without routed experts.
    """

    tensor_parallel: int
    pipeline: PipelineLayout
    padded_vocab_size: int
    experts: ExpertLayout | None = None

    @property
    def grouped(self) -> bool:
        """Whether experts are stacked."""
        return self.experts is not None and self.experts.grouped

    @property
    def grid(self) -> RankGrid:
        """The sizes from which names of rank files follow."""
        stages = self.pipeline.pipeline_parallel
        if self.experts is None:
            return RankGrid(self.tensor_parallel, stages, 1, self.tensor_parallel)
        experts = self.experts
        return RankGrid(self.tensor_parallel, stages, experts.parallel, experts.tensor_parallel)

    def at(self, shape: ModelShape, rank: int, expert_rank: int = 0) -> TensorParallel:
        """The position of a tensor-parallel rank that is also an expert-parallel rank."""
        experts = None
        if self.experts is not None:
            size = self.experts.tensor_parallel
            experts = ExpertParallel(expert_rank, self.experts.parallel, rank % size, size)
        size = self.tensor_parallel
        return TensorParallel.of(shape, rank, size, self.padded_vocab_size, experts)

    def ranks(self, shape: ModelShape) -> list[TensorParallel]:
        """The positions within a stage that hold different weights: those with a rank file."""
        return [self.at(shape, tensor, expert) for tensor, expert in self.grid.pairs()]

    def rank_folder(self, at: TensorParallel, stage: int) -> str:
        """Name of a rank's folder within an iteration."""
        return self.grid.folder(at.rank, stage, at.experts.rank if at.experts else 0)

    def describe(self) -> str:
        """``TP2 PP4 (15,15,15,16)``: sizes, and the layers of each stage if uneven."""
        text = f"TP{self.tensor_parallel} PP{self.pipeline.pipeline_parallel}"
        if self.pipeline.chunks > 1:
            text += f" VPP{self.pipeline.chunks}"
        if self.experts is not None:
            text += self.experts.describe(self.tensor_parallel)
        text += f" ({self.pipeline.describe()})" if self.pipeline.uneven else ""
        return text + (f" no-op {_listed(self.pipeline)}" if self.pipeline.noop_layers else "")


def _listed(pipeline: PipelineLayout) -> str | None:
    """Places of the no-op layers, as the flag spells them; None without any."""
    return ",".join(map(str, pipeline.noop_layers)) or None


def checkpoint_args(
    family: Family, shape: ModelShape, layout: CheckpointLayout, params_dtype: str
) -> argparse.Namespace:
    """What a checkpoint says of itself, under the names of Megatron's flags, as plain values.

    Args:
        params_dtype: ``bf16``, ``fp16`` or ``fp32``.
    """
    pipeline = layout.pipeline
    chunked = pipeline.chunks > 1
    grid = layout.grid
    return argparse.Namespace(
        **(to_flags(shape) | {"num_layers": len(pipeline.places)}),
        model_shape=json.dumps(shape.to_dict()),
        seq_length=shape.max_position_embeddings,
        padded_vocab_size=layout.padded_vocab_size,
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=pipeline.pipeline_parallel,
        expert_model_parallel_size=grid.expert,
        expert_tensor_parallel_size=grid.expert_tensor,
        moe_grouped_gemm=layout.grouped,
        noop_layers=_listed(pipeline),
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
    grid = RankGrid.of_args(args)
    experts = None
    if shape.experts is not None:
        grouped = bool(values.get("moe_grouped_gemm"))
        experts = ExpertLayout(grid.expert, grid.expert_tensor, grouped)
    layout = CheckpointLayout(grid.tensor, _pipeline(values, shape.num_layers), padded, experts)
    return family, shape, layout


def _noop_layers(values: dict[str, Any]) -> tuple[int, ...]:
    listed = values.get("noop_layers") or ()
    parts = listed.split(",") if isinstance(listed, str) else listed
    return tuple(sorted(int(part) for part in parts))


def _shape(values: dict[str, Any], vocab_size: int | None) -> ModelShape:
    if values.get("model_shape"):
        shape = ModelShape.from_dict(json.loads(values["model_shape"]))
        _refuse_contradictions(values, shape)
        return shape
    _refuse_other_models(values)
    if (noops := len(_noop_layers(values))) and values.get("num_layers"):
        values = values | {"num_layers": values["num_layers"] - noops}
    try:
        return from_flags(values, vocab_size)
    except MissingFlags as error:
        raise UserError(
            f"the checkpoint's args have no {error}, so its model shape is unknown; give the "
            "original config.json (--hf-cfg-dir when converting, --hf-config when training)"
        ) from None


def _refuse_contradictions(values: dict[str, Any], shape: ModelShape) -> None:
    """What flags say must be what the shape stored beside them says: both are read by someone."""
    said = to_flags(shape) | {"num_layers": shape.num_layers + len(_noop_layers(values))}
    lines = [
        f"{name} {values[name]}, but its model_shape means {value}"
        for name, value in said.items()
        if name in values and values[name] != value
    ]
    if lines:
        raise UserError(
            f"the checkpoint's args contradict themselves: {'; '.join(lines)}. They were edited, "
            "or are of another model"
        )


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
    noop_layers = _noop_layers(values)
    if per_chunk is None and chunks and chunks > 1:
        per_chunk = (num_layers + len(noop_layers)) // stages // chunks
    sizes = _layer_list(values, num_layers, stages)
    if stages == 1 or sizes is not None:
        per_chunk = None
    return PipelineLayout.build(num_layers, stages, per_chunk, sizes, noop_layers)


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
