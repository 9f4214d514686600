"""Megatron's ``torch`` format: one ``model_optim_rng.pt`` a rank of one layout.

Weights and Adam's state load at any layout, with and without the distributed optimizer, since
both are stored under the names of the weights: ``model`` holds the weights, and
``optimizer.exp_avg.model`` the state of that name (``model0``, ... with virtual stages).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.live import read_held, unwrap
from mindspeed_llm.checkpoint.paths import RANK_FILE
from mindspeed_llm.checkpoint.placement import canonical_name, held_tensors
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.checkpoint.torch_source import TorchSource
from mindspeed_llm.files import fsync_path
from mindspeed_llm.training.checkpointing import optimizer_state
from mindspeed_llm.training.setup import Run


def save(run: Run, folder: Path, common: dict[str, Any], rng: dict[str, Any] | None) -> None:
    """Write this rank's part into ``folder`` (its rank folder); all ranks call it.

    Args:
        common: what all ranks know alike (args, iteration, schedule).
        rng: generator states; None with ``--no-save-rng``.
    """
    state = dict(common)
    if not run.cfg.checkpoint.no_save_optim:
        state["optimizer"] = optimizer_state.common_state(run.optimizer)
        state |= _named_states(run)
    if run.rank_file_copy > 0:
        return
    folder.mkdir(parents=True)
    for key, model in zip(run.layout.chunk_keys(), run.models, strict=True):
        state[key] = {
            name: value
            for name, value in model.state_dict_for_save_checkpoint().items()
            if isinstance(value, torch.Tensor)
        }
    if rng is not None:
        state["rng_state"] = [rng]
    torch.save(state, folder / RANK_FILE)
    fsync_path(folder / RANK_FILE)
    fsync_path(folder)


def load(run: Run, folder: Path, *, optimizer: bool, rng: bool) -> dict[str, Any]:
    """Restore this rank's optimizer, whose weights are loaded already, from any layout.

    Args:
        folder: the iteration's folder.
        rng: also return the generators; asked for only at the layout of the checkpoint.

    Returns:
        The common part, and ``rng_state`` if asked for.

    Raises:
        UserError: naming a part that is asked for and missing.
    """
    source = run.model.source
    assert isinstance(source, TorchSource)
    state = load_file(folder / (run.rank_folder if rng else source.first_folder) / RANK_FILE)
    if optimizer:
        common = state.get("optimizer") or {}
        if "step" not in common or not source.states:
            raise UserError(
                f"{folder} holds no optimizer state, or one of another program or of a version "
                "before states had names; --no-load-optim starts with a fresh optimizer"
            )
        optimizer_state.restore(run.optimizer, common, _reader(run, source))
    else:
        run.optimizer.reload_model_params()
    if rng and "rng_state" not in state:
        raise UserError(
            f"{folder} holds no random-generator state (saved with --no-save-rng?); "
            "--no-load-rng starts with fresh generators"
        )
    return {name: state[name] for name in ("opt_param_scheduler", "rng_state") if name in state}


def _named_states(run: Run) -> dict[str, dict[str, Tensor]]:
    """``optimizer.STATE.CHUNK`` -> name -> tensor, of what this rank stores; a collective."""
    names = {
        id(parameter): (key, name)
        for key, model in zip(run.layout.chunk_keys(), run.models, strict=True)
        for name, parameter in unwrap(model).named_parameters()
    }
    found: dict[str, dict[str, Tensor]] = {}
    for parameter, states in optimizer_state.gathered(run.optimizer):
        key, name = names[id(parameter)]
        for state, value in states.items():
            found.setdefault(f"optimizer.{state}.{key}", {})[name] = value
    return found


def _reader(run: Run, source: TorchSource) -> Callable[[nn.Parameter], optimizer_state.States]:
    """A function from a parameter of this rank to its states in the checkpoint."""
    at = run.position.tensor_parallel(run.model.shape, run.padded_vocab_size)
    where = {}
    for chunk, model in enumerate(run.models):
        parameters = {
            canonical_name(name): parameter for name, parameter in unwrap(model).named_parameters()
        }
        for held in held_tensors(
            source.family,
            source.shape,
            run.layout,
            run.position.pipeline,
            chunk,
            at,
            run.checkpoint_layout.grouped,
        ):
            if held.name in parameters:
                where[id(parameters[held.name])] = held
    sources = {state: source.of_state(state) for state in source.states}

    def read(parameter: nn.Parameter) -> optimizer_state.States:
        held = where[id(parameter)]
        return {state: read_held(held, stored) for state, stored in sources.items()}

    return read
