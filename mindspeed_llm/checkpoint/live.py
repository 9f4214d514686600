"""Weights from any source straight into a live, possibly parallel, Megatron model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.metadata import CheckpointLayout, ExpertLayout
from mindspeed_llm.checkpoint.placement import (
    Held,
    canonical_name,
    held_tensors,
    is_weight,
)
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.splits import TensorParallel


def load_into(
    model_chunks: Sequence[nn.Module],
    source: WeightSource,
    layout: PipelineLayout,
    pp_rank: int,
    at: TensorParallel,
) -> str:
    """Fill every parameter of this rank's model chunks, each exactly once.

    Args:
        model_chunks: the chunks of this pipeline stage, in order; wrappers such as Megatron's
            distributed data parallel or mixed-precision modules are looked through.
        source: where the weights come from, at whatever layout.
        layout: which layer lies on which stage and chunk of the live model.
        pp_rank: this rank's stage.
        at: this rank's tensor- and expert-parallel place, and the live model's padding.

    Returns:
        One line that says what was loaded and how it was resharded.

    Raises:
        UserError: if parameters and weights do not correspond one to one, or differ in size.
    """
    count = 0
    grouped = False
    for chunk, model in enumerate(model_chunks):
        tensors = _tensors(model)
        grouped = any(name.endswith(".experts.weight1") for name in tensors)
        helds = {
            held.name: held
            for held in held_tensors(
                source.family, source.shape, layout, pp_rank, chunk, at, grouped
            )
        }
        _compare_names(set(tensors), set(helds), pp_rank, chunk)
        for name, held in helds.items():
            _fill(tensors[name], held, source)
        count += len(helds)
    experts = None
    if source.shape.experts is not None and at.experts is not None:
        experts = ExpertLayout(at.experts.size, at.experts.tensor_size, grouped)
    live = CheckpointLayout(at.size, layout, at.padded_vocab_size, experts)
    return f"{count} tensors from {source.path}: {_change(source, live)}"


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside wrappers that keep it as ``module``."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Everything trained in a model: its parameters, and buffers such as a router's bias."""
    state = unwrap(model).state_dict(keep_vars=True)
    return {
        canonical_name(name): value
        for name, value in state.items()
        if is_weight(name) and isinstance(value, Tensor)
    }


def _compare_names(live: set[str], stored: set[str], pp_rank: int, chunk: int) -> None:
    if live == stored:
        return
    lines = [
        f"{what}: {', '.join(sorted(names)[:6])}"
        for what, names in (
            ("in the model, not in the weights", live - stored),
            ("in the weights, not in the model", stored - live),
        )
        if names
    ]
    raise UserError(
        f"model and weights do not fit together (pipeline stage {pp_rank}, chunk {chunk}): "
        + "; ".join(lines)
        + ". The flags that shape the model must agree with the checkpoint"
    )


def _fill(tensor: Tensor, held: Held, source: WeightSource) -> None:
    dims = held.dims(source.shape)
    if dims != tuple(tensor.shape):
        raise UserError(
            f"{held.name}: the weights have size {list(dims)}, the model {list(tensor.shape)}; "
            "the flags that shape the model must agree with the checkpoint"
        )
    with torch.no_grad():
        tensor.copy_(read_held(held, source))


def read_held(held: Held, source: WeightSource) -> Tensor:
    """A rank's tensor as it lies in a model."""
    parts = [source.part(entry, held.at) for entry in held.entries]
    if not held.stacked:
        return parts[0]
    return torch.stack([part.t() for part in parts]).view(held.dims(source.shape))


def _change(source: WeightSource, live: CheckpointLayout) -> str:
    stored = getattr(source, "layout", None)
    if stored is None:
        return f"{source.describe()} -> {live.describe()}"
    if stored.describe() == live.describe():
        return f"{live.describe()}, as saved"
    return f"resharded {stored.describe()} -> {live.describe()}"
