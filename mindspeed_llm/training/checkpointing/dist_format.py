"""Megatron's ``torch_dist`` format: every tensor whole, loadable at any TP, PP and DP.

Written and read by ``megatron.core.dist_checkpointing``. The optimizer's state is saved as
``fully_reshardable``, the one form that was measured to resume rightly at every layout.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import (
    ShardedObject,
    ShardedTensor,
    ShardedTensorFactory,
)
from megatron.core.dist_checkpointing.validation import StrictHandling

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.dist_source import SafeReader
from mindspeed_llm.training.setup import Run

METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}
RNG_KEY = "rng_state"


def save(run: Run, folder: Path, common: dict[str, Any], rng: dict[str, Any] | None) -> None:
    """Write this rank's part of the checkpoint into ``folder``; all ranks call it."""
    state = dict(common)
    state |= _model_state(run)
    if not run.cfg.checkpoint.no_save_optim:
        state["optimizer"] = run.optimizer.sharded_state_dict(_model_state(run), metadata=METADATA)
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
    if optimizer:
        _require(folder, "optimizer", "--no-load-optim starts with a fresh optimizer")
        wanted["optimizer"] = run.optimizer.sharded_state_dict(
            _model_state(run), is_loading=True, metadata=METADATA
        )
    if rng:
        _require(folder, RNG_KEY, "--no-load-rng starts with fresh generators")
        wanted[RNG_KEY] = _sharded_rng(run, {})
    state = dist_checkpointing.load(wanted, str(folder), strict=StrictHandling.RAISE_UNEXPECTED)
    for key, model in zip(run.layout.chunk_keys(), run.models, strict=True):
        model.load_state_dict(state.pop(key), strict=False)
    if optimizer:
        run.optimizer.load_state_dict(state.pop("optimizer"))
    else:
        run.optimizer.reload_model_params()
    return state


def _model_state(run: Run) -> dict[str, Any]:
    state = {
        key: model.sharded_state_dict(metadata=dict(METADATA))
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


def _require(folder: Path, prefix: str, way_out: str) -> None:
    """A part that was not saved is an error that names it, not a fresh start."""
    keys = SafeReader(folder).read_metadata().state_dict_metadata.keys()
    # Experts have an optimizer of their own where they are spread over ranks: chained_1.optimizer.
    if not any(re.match(rf"(chained_\d+\.)?{prefix}", key) for key in keys):
        raise UserError(f"{folder} holds no {prefix} (it was saved without); {way_out}")
