"""``pretrain_gpt.py`` / ``mindspeed-llm pretrain``: continue or start training on raw text.

Run it under torchrun, or let ``--nproc N`` start N processes::

    mindspeed-llm pretrain --nproc 2 --tensor-model-parallel-size 2 --load HF_DIR \
        --data-path corpus_text_document --seq-length 1024 --micro-batch-size 1 \
        --global-batch-size 8 --train-iters 100 --lr 1e-5 --bf16 --save ckpt
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mindspeed_llm.console import box
from mindspeed_llm.flags import Config, parse, validate
from mindspeed_llm.launch import is_rank, launch

if TYPE_CHECKING:
    from mindspeed_llm.data.tokenizer import NullTokenizer, Tokenizer
    from mindspeed_llm.distributed import Position
    from mindspeed_llm.model_source import ResolvedModel
    from mindspeed_llm.training.checkpointing.load import Saved
    from mindspeed_llm.training.checkpointing.start import Start
    from mindspeed_llm.training.objective import Objective
    from mindspeed_llm.training.setup import Run

VERB = "pretrain"


class Pretraining:
    """Pretraining as a :class:`Kind`."""

    def objective(self, run: Run, start: Start, saved: Saved | None) -> tuple[Objective, list[str]]:
        """The loss of each next token."""
        from mindspeed_llm.training.step import NEXT_TOKEN

        return NEXT_TOKEN, []

    def finish(self, run: Run) -> None:
        """Nothing is left to say."""


class Kind(Protocol):
    """What a kind of training adds to the common course."""

    def objective(self, run: Run, start: Start, saved: Saved | None) -> tuple[Objective, list[str]]:
        """What is learnt, once the weights are loaded; lines on it for the start-up block."""

    def finish(self, run: Run) -> None:
        """Called on every rank after the last iteration."""


def main(argv: list[str]) -> int:
    """Parse, start the processes if asked to, pretrain."""
    return start_verb(VERB, argv, Pretraining())


def start_verb(verb: str, argv: list[str], kind: Kind) -> int:
    """Parse the command line of a verb that trains, start the processes if asked to, train."""
    cfg = parse(verb, argv, f"mindspeed-llm {verb}")
    if cfg.parallel.nproc and not is_rank():
        return launch("mindspeed_llm.cli", [verb, *argv], cfg.parallel.nproc)
    train(cfg, kind)
    return 0


def train(cfg: Config, kind: Kind | None = None) -> None:
    """Train as ``cfg`` says, in this process as one rank."""
    from mindspeed_llm import distributed
    from mindspeed_llm.model_source import resolve_model
    from mindspeed_llm.training.checkpointing.load import inspect
    from mindspeed_llm.training.checkpointing.start import check_save_folder, choose_start

    check_save_folder(cfg)
    start = choose_start(cfg)
    saved = inspect(start)
    tokenizer = _tokenizer(cfg)
    vocab = None if tokenizer is None else tokenizer.vocab_size
    model = resolve_model(cfg, start.root, start.iteration, vocab)
    cfg = settled(cfg, model)
    layout = model.layout(cfg)
    position = distributed.initialize(cfg, layout.chunks)
    try:
        _train(cfg, model, position, start, saved, tokenizer, kind or Pretraining())
    finally:
        distributed.shutdown()


def _tokenizer(cfg: Config) -> Tokenizer | NullTokenizer | None:
    """The tokenizer that the flags name; None where generated data needs none."""
    from mindspeed_llm.data.tokenizer import tokenizer_of

    flags = cfg.tokenizer
    folder = flags.tokenizer_name_or_path or flags.tokenizer_model
    if folder is None and flags.tokenizer_type in (None, "NullTokenizer"):
        return None
    return tokenizer_of(flags, folder)


def settled(cfg: Config, model: ResolvedModel) -> Config:
    """The flags with the model's shape and the batch size filled in, and checked."""
    cfg = model.fill(cfg)
    derived = validate(cfg, int(os.environ.get("WORLD_SIZE", "1")))
    filled = cfg.replace(global_batch_size=derived.global_batch_size)
    return dataclasses.replace(filled, given=cfg.given)


def _train(
    cfg: Config,
    model: ResolvedModel,
    position: Position,
    start: Start,
    saved: Saved | None,
    tokenizer: Tokenizer | NullTokenizer | None,
    kind: Kind,
) -> None:
    from mindspeed_llm.training.checkpointing.load import (
        needs_source,
        resume,
        wants_full_resume,
    )
    from mindspeed_llm.training.data import Feed
    from mindspeed_llm.training.loop import Loop
    from mindspeed_llm.training.setup import build_run
    from mindspeed_llm.training.signals import StopRequest
    from mindspeed_llm.training.stages import build_micro_batches, train_iterations

    finetune = cfg.checkpoint.finetune and not start.continues
    micro_batches = build_micro_batches(cfg, position)
    train_iters = train_iterations(cfg)
    run, loaded = build_run(
        cfg,
        model,
        position,
        train_iters,
        load_weights=needs_source(saved, finetune),
    )
    objective, lines = kind.objective(run, start, saved)
    lines += [loaded] if loaded else []
    if saved is not None and wants_full_resume(saved, finetune):
        lines += resume(run, saved)
    elif model.source is not None:
        lines.append(
            "--finetune: iteration, schedule, optimizer and generators start afresh"
            if saved is not None and not saved.weights_only
            else "weights only: training starts at iteration 0"
        )
    feed = Feed(run, tokenizer, train_iters)
    _announce(run, [*start.notes, *lines, *feed.describe()])
    reporter = build_reporter(run, train_iters, objective)
    training = cfg.training
    stop = StopRequest(
        training.exit_signal_handler, training.exit_duration_in_mins, training.exit_interval
    )
    saved_at = _saved_at(cfg, saved) if not finetune else None
    loop = Loop(run, feed, objective, micro_batches, reporter, stop, train_iters, saved_at)
    try:
        loop.train()
        kind.finish(run)
    finally:
        reporter.close()


def _saved_at(cfg: Config, saved: Saved | None) -> int | None:
    """The iteration that ``--save`` already holds, if the run starts from there."""
    if saved is None or saved.weights_only or not cfg.checkpoint.save:
        return None
    here = saved.folder.parent.resolve() == Path(cfg.checkpoint.save).resolve()
    return saved.iteration if here else None


def build_reporter(run: Run, train_iters: int, objective: Objective):
    """The log of a run, beside its checkpoints."""
    from mindspeed_llm.training.flops import training_flops
    from mindspeed_llm.training.metrics import Reporter

    cfg = run.cfg
    return Reporter(
        interval=cfg.logging.log_interval,
        train_iters=train_iters,
        seq_length=run.batch.seq_length,
        flops_per_sequence=objective.compute
        * training_flops(run.model.shape, 1, run.batch.seq_length),
        device=run.position.device,
        folder=Path(cfg.checkpoint.save) if cfg.checkpoint.save else None,
        tensorboard_dir=cfg.logging.tensorboard_dir,
        resumed_at=run.progress.iteration,
        log_zeros=cfg.logging.log_num_zeros_in_grad,
    )


def _announce(run: Run, lines: list[str]) -> None:
    """The start-up block: every decision in a line."""
    import torch

    from mindspeed.ops import dispatch

    cfg, at, shape = run.cfg, run.position, run.model.shape
    millions = run.model.family.num_parameters(shape) / 1e6
    backend = cfg.parallel.distributed_backend
    block = [
        f"device    {at.device.name} ({at.device.reason}), {torch.get_num_threads()} threads",
        f"layout    {at.describe()}",
        f"          layers per stage {run.layout.describe()}",
        f"model     {run.model.family.name}, {millions:.1f} M parameters, "
        f"shape from {run.model.where}",
        f"vocab     {shape.vocab_size} rows, padded to {run.padded_vocab_size}; padding takes no "
        "part in the loss",
        f"dtype     {cfg.params_dtype}"
        + ("" if cfg.params_dtype == "fp32" else ", gradients and master weights fp32"),
        f"ops       {dispatch.describe()}",
        f"batch     {run.batch.global_batch_size} x {run.batch.seq_length} tokens",
    ]
    if "distributed_backend" in cfg.given and backend != at.device.backend:
        block.append(f"backend   {at.device.backend} instead of {backend} on this device")
    block += [f"start     {line}" for line in lines]
    block += [f"inactive  {line}" for line in cfg.inactive_flags(at.device.name)]
    box(f"mindspeed-llm {cfg.tool}", block)
