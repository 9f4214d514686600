"""Megatron's ``torch_dist`` format: every tensor whole, loadable at any TP, PP and DP.

Written and read by ``megatron.core.dist_checkpointing``. Adam's state is stored parameter by
parameter beside the weights (``optimizer.state.exp_avg.decoder...``), whichever optimizer keeps it,
so that it loads at any layout too, and with or without the distributed optimizer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
)
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from torch import nn

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.dist_source import SafeReader, state_prefix, stored_states
from mindspeed_llm.training.checkpointing import optimizer_state
from mindspeed_llm.training.setup import Run

RNG_KEY = "rng_state"
_STATES = "optimizer_states"

Sharded: TypeAlias = ShardedTensor | ShardedTensorFactory


def save(run: Run, folder: Path, common: dict[str, Any], rng: dict[str, Any] | None) -> None:
    """Write this rank's part of the checkpoint into ``folder``; all ranks call it."""
    state = dict(common)
    state |= _model_state(run)
    if not run.cfg.checkpoint.no_save_optim:
        state["optimizer"] = optimizer_state.common_state(run.optimizer)
        place = _places(state)
        state[_STATES] = [
            make_sharded_optimizer_tensor(place[id(parameter)], value, state_prefix(name))
            for parameter, states in optimizer_state.gathered(run.optimizer)
            for name, value in states.items()
        ]
    if rng is not None:
        state[RNG_KEY] = _sharded_rng(run, rng)
    dist_checkpointing.save(state, str(folder))


def load(run: Run, folder: Path, *, optimizer: bool, rng: bool) -> dict[str, Any]:
    """Restore this rank, whatever layout the checkpoint was written at.

    Args:
        rng: restore the generators; asked for only at the layout of the checkpoint.

    Returns:
        The common part, and ``rng_state`` if asked for.
    """
    wanted: dict[str, Any] = _model_state(run)
    keys = set(SafeReader(folder).read_metadata().state_dict_metadata)
    parameters = list(optimizer_state.held(run.optimizer)) if optimizer else []
    if optimizer:
        names = stored_states(keys)
        if not names:
            raise UserError(
                f"{folder} holds no optimizer state, or one of another program; --no-load-optim "
                "starts with a fresh optimizer"
            )
        place = _places(wanted)
        wanted[_STATES] = [
            _wanted_states(parameter, place[id(parameter)], names, keys) for parameter in parameters
        ]
    if rng:
        if not any(key.startswith(RNG_KEY) for key in keys):
            raise UserError(
                f"{folder} holds no {RNG_KEY} (it was saved without); --no-load-rng starts with "
                "fresh generators"
            )
        wanted[RNG_KEY] = _sharded_rng(run, {})
    state = dist_checkpointing.load(
        wanted,
        str(folder),
        strict=StrictHandling.RAISE_UNEXPECTED,
        # Of a sharded optimizer the first data-parallel rank need not want every parameter.
        validate_access_integrity=False,
    )
    for key, model in zip(run.layout.chunk_keys(), run.models, strict=True):
        model.load_state_dict(state.pop(key), strict=False)
    if optimizer:
        found = zip(parameters, state.pop(_STATES), strict=True)
        by_id = {id(parameter): states for parameter, states in found}
        common = state.pop("optimizer")
        optimizer_state.restore(run.optimizer, common, lambda parameter: by_id[id(parameter)])
    else:
        run.optimizer.reload_model_params()
    return state


def _places(state: dict[str, Any]) -> dict[int, Sharded]:
    """By the parameter's ``id``: where a tensor of its size goes in the checkpoint."""
    kinds = (ShardedTensor, ShardedTensorFactory)
    return {id(value.data): value for value in nested_values(state) if isinstance(value, kinds)}


def _wanted_states(
    parameter: nn.Parameter, place: Sharded, names: set[str], keys: set[str]
) -> dict[str, Sharded]:
    """The states of a parameter, to be read; one that computes in fp32 has no master copy."""
    return {
        name: make_sharded_optimizer_tensor(
            place, torch.empty(parameter.shape, dtype=torch.float32), state_prefix(name)
        )
        for name in names
        if f"{state_prefix(name)}.{place.key}" in keys
    }


def _model_state(run: Run) -> dict[str, Any]:
    state = {
        key: model.sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group(None))
        for key, model in zip(run.layout.chunk_keys(), run.models, strict=True)
    }
    if run.layout.noop_layers:
        for tensors in state.values():
            for value in tensors.values():
                _count_layers_alone(value, run.layout.places)
    return state


_LAYER = re.compile(r"^(decoder\.layers\.)(\d+)\.")


def _count_layers_alone(value: Any, places: list[int | None]) -> None:
    """Give a tensor the place that it has in the model without no-op layers.

    So a checkpoint does not depend on which layout wrote it.
    """
    if match := _LAYER.match(value.key):
        value.key = _LAYER.sub(rf"\g<1>{places[int(match[2])]}.", value.key)
    elif value.key.startswith("decoder.layers."):
        if isinstance(value, ShardedTensorFactory):
            build = value.build_fn

            def build_and_count(*args: Any) -> Any:
                built = build(*args)
                for tensor in nested_values(built):
                    _restack(tensor, places)
                return built

            value.build_fn = build_and_count
        else:
            _restack(value, places)


def _restack(tensor: ShardedTensor | ShardedObject, places: list[int | None]) -> None:
    """Renumber along the first dimension, which counts layers."""
    count = len(places) - places.count(None)
    layer = places[tensor.global_offset[0]]
    tensor.global_shape = (count, *tensor.global_shape[1:])
    tensor.global_offset = (layer, *tensor.global_offset[1:])
    if isinstance(tensor, ShardedTensor):
        tensor.axis_fragmentations = (count, *tensor.axis_fragmentations[1:])


def _sharded_rng(run: Run, state: dict[str, Any]) -> ShardedObject:
    grid, at = run.checkpoint_layout.grid, run.position
    pairs = grid.pairs()
    expert_rank = at.expert_rank if grid.expert > 1 else 0
    return ShardedObject(
        RNG_KEY,
        [state],
        (at.pipeline_size, len(pairs)),
        (at.pipeline, pairs.index((at.tensor, expert_rank))),
        replica_id=run.rank_file_copy,
    )
