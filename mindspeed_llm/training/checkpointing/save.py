"""Saving a run so that a kill at any moment leaves a whole checkpoint to go on from.

All ranks write into a folder under a temporary name; once every rank has confirmed, the first
rank records the files, renames the folder, and moves the pointer file last.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from mindspeed_llm.checkpoint import paths, side_files
from mindspeed_llm.checkpoint.hf_source import HfSource
from mindspeed_llm.checkpoint.metadata import checkpoint_args
from mindspeed_llm.files import atomic_folder, replace_folder
from mindspeed_llm.training.checkpointing import dist_format, manifest, torch_format
from mindspeed_llm.training.checkpointing.rng import rng_state
from mindspeed_llm.training.metrics import say_last
from mindspeed_llm.training.setup import Run


def save_checkpoint(run: Run) -> None:
    """Save the state of ``run`` under ``--save``; all ranks call it."""
    started = time.perf_counter()
    options, at = run.cfg.checkpoint, run.position
    assert options.save is not None
    root, iteration = Path(options.save), run.progress.iteration
    target = paths.iteration_folder(root, iteration)
    folder = target.with_name(f".{target.name}.partial")
    if at.rank == 0:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(".iter_*.partial"):
            shutil.rmtree(leftover)
        folder.mkdir()
    torch.distributed.barrier()
    rng = None if options.no_save_rng else rng_state(at.device)
    common = _common_state(run)
    if options.ckpt_format == "torch_dist":
        dist_format.save(run, folder, common, rng)
    else:
        torch_format.save(run, folder / run.rank_folder, common, rng)
    torch.distributed.barrier()
    if at.rank == 0:
        manifest.write(folder, iteration, options.ckpt_format)
        replace_folder(folder, target)
        paths.write_pointer(root, iteration)
        _retain(root, iteration, options.save_interval, options.save_retain_interval)
    torch.distributed.barrier()
    seconds = time.perf_counter() - started
    say_last(f"saved iteration {iteration} to {root} ({options.ckpt_format}, {seconds:.1f} s)")


def carry_hf_files(run: Run) -> None:
    """Keep config and tokenizer files beside the checkpoints, so that they export whole.

    Once a run is enough: they do not change. The first rank writes them.
    """
    assert run.cfg.checkpoint.save is not None
    root, source = Path(run.cfg.checkpoint.save), run.model.source
    target = root / paths.HF_FILES
    if source is None or source.side_folder is None or source.side_folder == target:
        return
    if run.position.rank != 0:
        return
    if isinstance(source, HfSource):
        origin = side_files.Origin(redundant_output=source.redundant_output)
        side_files.keep(source.path, root, origin, source.config)
        return
    with atomic_folder(target) as folder:
        shutil.copytree(source.side_folder, folder, dirs_exist_ok=True)


def _common_state(run: Run) -> dict[str, Any]:
    args = checkpoint_args(
        run.model.family, run.model.shape, run.checkpoint_layout, run.cfg.params_dtype
    )
    progress = run.progress
    args.iteration = progress.iteration
    args.consumed_train_samples = progress.consumed_train_samples
    args.skipped_train_samples = 0
    args.global_batch_size = run.batch.global_batch_size
    args.micro_batch_size = run.batch.micro_batch_size
    args.seq_length = run.batch.seq_length
    args.data_parallel_size = run.position.data_size
    args.world_size = run.position.world
    args.use_distributed_optimizer = run.cfg.parallel.use_distributed_optimizer
    args.seed = run.cfg.training.seed
    args.optimizer = "adam"
    return {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": progress.iteration,
        "opt_param_scheduler": run.scheduler.state_dict(),
    }


def _retain(root: Path, newest: int, interval: int | None, retain: int | None) -> None:
    """Keep only every ``retain``-th iteration besides the newest (``--save-retain-interval``)."""
    if retain is None or interval is None:
        return
    for iteration in paths.iterations(root):
        if isinstance(iteration, int) and iteration < newest and iteration % retain:
            doomed = paths.iteration_folder(root, iteration)
            # Renamed first: a kill while deleting must not leave a folder that looks whole.
            away = doomed.with_name(f".{doomed.name}.partial")
            os.rename(doomed, away)
            shutil.rmtree(away)
