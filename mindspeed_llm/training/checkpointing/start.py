"""Where a run starts from: decided from the flags and from what lies on the disk, and said.

An incomplete or unreadable newest iteration (a killed save, a truncated file, a pointer that
names nothing) is named, and the newest whole one is used. A folder that was asked for and holds
nothing is an error, never a silent start from scratch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.training.checkpointing import manifest

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config


@dataclass(frozen=True)
class Start:
    """The checkpoint to start from.

    Attributes:
        root: the folder given as ``--load`` (or ``--save`` with ``--auto-resume``); None for a
            model from scratch.
        iteration: the iteration chosen in it; None for a Hugging Face folder.
        notes: lines for the start-up block.
        continues: the run goes on from its own ``--save``, where ``--finetune`` says nothing.
    """

    root: Path | None
    iteration: paths.Iteration | None
    notes: tuple[str, ...] = ()
    continues: bool = False

    @property
    def folder(self) -> Path | None:
        """The iteration's folder; None without a Megatron checkpoint."""
        if self.root is None or self.iteration is None:
            return None
        return paths.iteration_folder(self.root, self.iteration)


def choose_start(cfg: Config) -> Start:
    """Decide between ``--load``, ``--save`` and scratch.

    Raises:
        UserError: ``--load`` holds no usable checkpoint.
    """
    load = Path(cfg.checkpoint.load) if cfg.checkpoint.load else None
    save = Path(cfg.checkpoint.save) if cfg.checkpoint.save else None
    saved, saved_notes = newest(save) if save else (None, ())
    if cfg.checkpoint.auto_resume and saved is not None:
        note = f"--auto-resume: continuing from iteration {saved} in {save}"
        return Start(save, saved, (*saved_notes, note), continues=True)
    if load is None or (load == save and saved is None and cfg.checkpoint.auto_resume):
        return Start(None, None, _newer_in_save(save, saved, None))
    if (load / "config.json").exists():
        return Start(load, None, _newer_in_save(save, saved, None))
    iteration, notes = _iteration_of(load, cfg.checkpoint.ckpt_step, trains=cfg.trains)
    if load != save:
        notes = (*notes, *_newer_in_save(save, saved, iteration))
    return Start(load, iteration, notes)


def check_save_folder(cfg: Config) -> None:
    """Find out now, and not at the first save, that ``--save`` cannot be written.

    Raises:
        UserError: it is a file, lies under one, or may not be written.
    """
    if cfg.checkpoint.save is None:
        return
    save = Path(cfg.checkpoint.save)
    there = next(path for path in (save, *save.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--save {save}: {there} is a file; give a folder, which need not exist")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"--save {save}: no permission to write in {there}")


def newest(root: Path) -> tuple[paths.Iteration | None, tuple[str, ...]]:
    """The iteration to use in a checkpoint folder, and what is wrong with others.

    The pointer file's if that one is whole, else the newest whole one.
    """
    notes: list[str] = []
    pointed: paths.Iteration | None = None
    try:
        pointed = paths.read_pointer(root)
    except UserError as error:
        notes.append(str(error).split(". ")[0])
    whole: list[paths.Iteration] = []
    for iteration in paths.iterations(root):
        problems = manifest.damage(paths.iteration_folder(root, iteration))
        if problems:
            notes.append(f"iteration {iteration} in {root} is incomplete: {problems[0]}")
        else:
            whole.append(iteration)
    if pointed in whole:
        return pointed, tuple(notes)
    if pointed is not None and pointed not in paths.iterations(root):
        notes.append(f"{root / paths.POINTER} names iteration {pointed}, which is not there")
    if not whole:
        return None, tuple(notes)
    if pointed is None and not notes:
        notes.append(f"{root} has no {paths.POINTER}")
    notes.append(f"using the newest complete iteration: {whole[-1]}")
    return whole[-1], tuple(notes)


_FROM_SCRATCH = (
    "; leave --load out to start from scratch, or use --auto-resume to start from scratch only "
    "while --save is still empty"
)


def _iteration_of(
    root: Path, step: int | None, trains: bool
) -> tuple[paths.Iteration, tuple[str, ...]]:
    if not root.is_dir():
        raise UserError(
            f"--load {root} does not exist. Give a Hugging Face folder or a checkpoint that was "
            f"saved{_FROM_SCRATCH if trains else ''}"
        )
    if step is not None:
        folder = paths.iteration_folder(root, step)
        problems = manifest.damage(folder)
        if problems:
            present = ", ".join(str(i) for i in paths.iterations(root)) or "none"
            raise UserError(
                f"--ckpt-step {step}: {folder}: {problems[0]}. Iterations there: {present}"
            )
        return step, ()
    iteration, notes = newest(root)
    if iteration is None:
        found = "; ".join(notes) or (
            f"it has neither config.json (Hugging Face) nor {paths.POINTER} (Megatron)"
        )
        raise UserError(
            f"--load {root} holds no usable checkpoint: {found}. Correct the path"
            f"{', or leave --load out to start from scratch' if trains else ''}"
        )
    return iteration, notes


def _newer_in_save(
    save: Path | None, saved: paths.Iteration | None, loaded: paths.Iteration | None
) -> tuple[str, ...]:
    if not isinstance(saved, int) or (isinstance(loaded, int) and saved <= loaded):
        return ()
    return (
        f"--save {save} already holds iteration {saved}, newer than what is loaded; "
        "--auto-resume continues from it",
    )
