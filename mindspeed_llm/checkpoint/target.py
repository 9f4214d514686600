"""What the flags of a conversion say of the Megatron checkpoint to write, checked for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.metadata import CheckpointLayout, ExpertLayout
from mindspeed_llm.checkpoint.placement import check_divides
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.shape import padded_vocab_size

if TYPE_CHECKING:
    from mindspeed_llm.flags.convert import ConvertFlags
    from mindspeed_llm.models.shape import ModelShape


def target_layout(flags: ConvertFlags, shape: ModelShape) -> CheckpointLayout:
    """The layout that the flags ask for, for a model of a shape.

    Raises:
        UserError: if the model does not divide so, or the flags contradict it.
    """
    size = flags.target_tensor_parallel_size
    experts = _experts(flags, shape)
    check_divides(
        shape,
        size,
        flags.target_expert_parallel_size,
        experts.tensor_parallel if experts else size,
    )
    pipeline = PipelineLayout.build(
        shape.num_layers,
        flags.target_pipeline_parallel_size,
        flags.num_layers_per_virtual_pipeline_stage,
        flags.num_layer_list,
        flags.noop_layers or (),
    )
    padded = flags.padded_vocab_size or padded_vocab_size(
        shape.vocab_size, size, flags.make_vocab_size_divisible_by
    )
    if padded < shape.vocab_size or padded % size:
        raise UserError(
            f"--padded-vocab-size {padded} must be a multiple of the tensor-parallel size {size} "
            f"and at least the vocabulary's {shape.vocab_size} rows; leave it out for the smallest"
        )
    return CheckpointLayout(size, pipeline, padded, experts)


def _experts(flags: ConvertFlags, shape: ModelShape) -> ExpertLayout | None:
    if shape.experts is None:
        given = {
            "--expert-tensor-parallel-size": flags.expert_tensor_parallel_size,
            "--first-k-dense-replace": flags.first_k_dense_replace,
            "--moe-grouped-gemm": flags.moe_grouped_gemm,
        }
        names = ", ".join(name for name, value in given.items() if value)
        if names:
            raise UserError(f"{names}: the model has no experts; leave the flags out")
        return None
    dense, asked = shape.experts.first_k_dense_replace, flags.first_k_dense_replace
    if asked is not None and asked != dense:
        raise UserError(
            f"--first-k-dense-replace {asked}: the model has {dense} leading layers without "
            "experts; leave the flag out"
        )
    return ExpertLayout(
        flags.target_expert_parallel_size,
        flags.expert_tensor_parallel_size or flags.target_tensor_parallel_size,
        flags.moe_grouped_gemm,
    )


_NEUTRAL = {
    "target_tensor_parallel_size": 1,
    "target_pipeline_parallel_size": 1,
    "target_expert_parallel_size": 1,
    "expert_tensor_parallel_size": None,
    "moe_grouped_gemm": False,
    "first_k_dense_replace": None,
    "num_layers_per_virtual_pipeline_stage": None,
    "num_layer_list": None,
    "noop_layers": None,
    "make_vocab_size_divisible_by": 1,
    "padded_vocab_size": None,
    "num_layers": None,
    "ckpt_format": "torch",
}


def refuse_layout_flags(flags: ConvertFlags) -> None:
    """Refuse flags about a layout where a Hugging Face folder is written, which has none."""
    given = [name for name, value in _NEUTRAL.items() if getattr(flags, name) != value]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UserError(
            f"{names}: for hf to mg only. A Hugging Face folder has no layout, and that of the "
            "Megatron checkpoint is read from it; leave the flags out"
        )
