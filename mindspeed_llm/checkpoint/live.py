"""Weights from any source straight into a live, possibly parallel, Megatron model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.metadata import CheckpointLayout
from mindspeed_llm.checkpoint.placement import canonical_name, chunk_entries
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
        at: this rank's tensor-parallel place and the live model's vocabulary padding.

    Returns:
        One line that says what was loaded and how it was resharded.

    Raises:
        UserError: if parameters and weights do not correspond one to one, or differ in size.
    """
    count = 0
    for chunk, model in enumerate(model_chunks):
        parameters = _parameters(model)
        entries = dict(chunk_entries(source.family, source.shape, layout, pp_rank, chunk))
        _compare_names(set(parameters), set(entries), pp_rank, chunk)
        for name, entry in entries.items():
            _copy(name, source.part(entry, at), parameters[name])
        count += len(entries)
    live = CheckpointLayout(at.size, layout, at.padded_vocab_size)
    return f"{count} tensors from {source.path}: {_change(source, live)}"


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside wrappers that keep it as ``module``."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    named = unwrap(model).named_parameters(remove_duplicate=False)
    return {canonical_name(name): parameter for name, parameter in named}


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


def _copy(name: str, part: Tensor, parameter: Tensor) -> None:
    if part.shape != parameter.shape:
        raise UserError(
            f"{name}: the weights have size {list(part.shape)}, the model {list(parameter.shape)}; "
            "the flags that shape the model must agree with the checkpoint"
        )
    with torch.no_grad():
        parameter.copy_(part)


def _change(source: WeightSource, live: CheckpointLayout) -> str:
    stored = getattr(source, "layout", None)
    if stored is None:
        return f"{source.describe()} -> {live.describe()}"
    if stored.describe() == live.describe():
        return f"{live.describe()}, as saved"
    return f"resharded {stored.describe()} -> {live.describe()}"
