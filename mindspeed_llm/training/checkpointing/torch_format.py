"""Megatron's ``torch`` format: one ``model_optim_rng.pt`` per (TP, PP) rank, of one layout.

With the distributed optimizer, Adam's state lies in ``distrib_optim.pt`` beside it, gathered
over data parallelism, so it loads at any data-parallel size. Weights load at any layout (through
``checkpoint/source.py``), the optimizer's state only at the same TP and PP.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.files import fsync_path
from mindspeed_llm.training.setup import Run

MODEL_FILE = "model_optim_rng.pt"
OPTIMIZER_FILE = "distrib_optim.pt"


def save(run: Run, folder: Path, common: dict[str, Any], rng: dict[str, Any] | None) -> None:
    """Write this rank's part into ``folder`` (its rank folder); all ranks call it.

    Args:
        common: what all ranks know alike (args, iteration, schedule).
        rng: generator states; None with ``--no-save-rng``.
    """
    writes = run.position.data == 0
    with_optimizer = not run.cfg.checkpoint.no_save_optim
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
    if with_optimizer and run.cfg.parallel.use_distributed_optimizer:
        # A collective: every data-parallel rank gives its shard, the first one writes.
        run.optimizer.save_parameter_state(str(folder / OPTIMIZER_FILE))
    if not writes:
        return
    state = dict(common)
    for key, model in zip(run.layout.chunk_keys(), run.models, strict=True):
        state[key] = {
            name: value
            for name, value in model.state_dict_for_save_checkpoint().items()
            if isinstance(value, torch.Tensor)
        }
    if with_optimizer:
        state["optimizer"] = run.optimizer.state_dict()
    if rng is not None:
        state["rng_state"] = [rng]
    torch.save(state, folder / MODEL_FILE)
    for path in folder.iterdir():
        fsync_path(path)


def load(run: Run, folder: Path, *, optimizer: bool, rng: bool) -> dict[str, Any]:
    """Restore this rank from its rank folder, written at the same TP and PP.

    Returns:
        The common part, and ``rng_state`` if asked for.

    Raises:
        UserError: naming a part that is asked for and missing.
    """
    state = load_file(folder / MODEL_FILE)
    for key, model in zip(run.layout.chunk_keys(), run.models, strict=True):
        if key not in state:
            raise UserError(f"{folder / MODEL_FILE} has no {key!r}: it was saved at another layout")
        model.load_state_dict(state[key], strict=True)
    if optimizer:
        if "optimizer" not in state:
            raise UserError(
                f"{folder / MODEL_FILE} holds no optimizer state (saved with --no-save-optim?); "
                "--no-load-optim starts with a fresh optimizer"
            )
        run.optimizer.load_state_dict(state["optimizer"])
        if run.cfg.parallel.use_distributed_optimizer:
            with torch.no_grad():
                run.optimizer.load_parameter_state(str(folder / OPTIMIZER_FILE))
    else:
        run.optimizer.reload_model_params()
    if rng and "rng_state" not in state:
        raise UserError(
            f"{folder / MODEL_FILE} holds no random-generator state (saved with --no-save-rng?); "
            "--no-load-rng starts with fresh generators"
        )
    return {
        name: value
        for name, value in state.items()
        if name not in ("optimizer", *run.layout.chunk_keys())
    }
