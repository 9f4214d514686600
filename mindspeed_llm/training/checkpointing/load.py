"""Resuming a run: which parts a checkpoint holds, and putting each back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.metadata import CheckpointLayout, read_metadata
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.training.checkpointing import dist_format, torch_format
from mindspeed_llm.training.checkpointing.rng import restore_rng_state
from mindspeed_llm.training.checkpointing.start import Start
from mindspeed_llm.training.schedule import restore_scheduler
from mindspeed_llm.training.setup import Run


@dataclass(frozen=True)
class Saved:
    """What a Megatron checkpoint says about itself, before anything is restored.

    Attributes:
        weights_only: it holds no schedule, so no training state (a converted checkpoint).
        layout: the layout it was written at; None for weights alone.
    """

    folder: Path
    torch_dist: bool
    args: Any
    iteration: int
    weights_only: bool
    layout: CheckpointLayout | None


def inspect(start: Start) -> Saved | None:
    """Read the small part of the checkpoint to start from; None if it is not Megatron's."""
    folder = start.folder
    if folder is None:
        return None
    torch_dist = paths.is_torch_dist(folder)
    file = folder / "common.pt" if torch_dist else paths.first_rank_file(folder)
    # This also refuses unsafe classes, before Megatron's own loader, which allows any, sees it.
    state = load_file(file)
    weights_only = "opt_param_scheduler" not in state
    return Saved(
        folder=folder,
        torch_dist=torch_dist,
        args=state.get("args"),
        iteration=int(state.get("iteration", 0)),
        weights_only=weights_only,
        layout=None if weights_only else read_metadata(state["args"])[2],
    )


def wants_full_resume(saved: Saved | None, finetune: bool) -> bool:
    """Whether to restore a training state, rather than weights alone."""
    return saved is not None and not saved.weights_only and not finetune


def resume(run: Run, saved: Saved) -> list[str]:
    """Restore ``run`` from a checkpoint with training state.

    Weights in format torch were loaded already, when the model was built (``needs_source``).

    Returns:
        Lines for the start-up block.
    """
    options = run.cfg.checkpoint
    assert saved.layout is not None
    same = saved.layout == run.checkpoint_layout
    resharded = getattr(saved.args, "resharded_from", None)
    rng = not options.no_load_rng and same and resharded is None
    optimizer = not options.no_load_optim
    if saved.torch_dist:
        state = dist_format.load(run, saved.folder, optimizer=optimizer, rng=rng)
    else:
        state = torch_format.load(run, saved.folder, optimizer=optimizer, rng=rng)
    progress, args = run.progress, saved.args
    progress.iteration = saved.iteration
    progress.consumed_train_samples = args.consumed_train_samples
    restore_scheduler(run.scheduler, state["opt_param_scheduler"])
    if rng:
        restore_rng_state(state["rng_state"][0], run.position.device)
    return _report(saved, run, optimizer, rng, same)


def needs_source(saved: Saved | None, finetune: bool) -> bool:
    """Whether the weights come through ``checkpoint/source.py`` when the model is built.

    Else Megatron's own loading brings them, with the optimizer's state.
    """
    return not wants_full_resume(saved, finetune) or (saved is not None and not saved.torch_dist)


def _report(saved: Saved, run: Run, optimizer: bool, rng: bool, same: bool) -> list[str]:
    lines = [f"resumed at iteration {saved.iteration} from {saved.folder}"]
    if not same:
        assert saved.layout is not None
        lines.append(f"resharded from {saved.layout.describe()}")
    fresh = [
        *([] if optimizer else ["optimizer (--no-load-optim)"]),
        *([] if rng else ["random generators" + ("" if same else " (another layout)")]),
    ]
    if fresh:
        lines.append(f"fresh: {', '.join(fresh)}")
    return lines
