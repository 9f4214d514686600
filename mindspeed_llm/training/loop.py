"""The training loop."""

from __future__ import annotations

import gc
from dataclasses import dataclass

from megatron.core.num_microbatches_calculator import NumMicroBatchesCalculator
from megatron.core.optimizer_param_scheduler import get_canonical_lr_for_logging

from mindspeed.errors import UserError
from mindspeed_llm.training.checkpointing.save import carry_hf_files, save_checkpoint
from mindspeed_llm.training.data import Feed
from mindspeed_llm.training.hf_export import export_checkpoint
from mindspeed_llm.training.metrics import Reporter, say_last
from mindspeed_llm.training.objective import Objective
from mindspeed_llm.training.setup import Run
from mindspeed_llm.training.signals import StopRequest
from mindspeed_llm.training.step import StepResult, Totals, evaluate, train_step

MOST_SKIPPED = 10
"""Iterations in a row without an update, after which ``--skip-nan-loss`` gives up."""


@dataclass
class Loop:
    """A run with its data, its objective, its log and its reasons to stop.

    Attributes:
        saved_at: the iteration that ``--save`` already holds.
    """

    run: Run
    feed: Feed
    objective: Objective
    micro_batches: NumMicroBatchesCalculator
    reporter: Reporter
    stop: StopRequest
    train_iters: int
    saved_at: int | None = None
    skipped_in_a_row: int = 0

    def train(self) -> None:
        """Iterate to the end or to a reason to stop, saving and evaluating on the way."""
        cfg, progress = self.run.cfg, self.run.progress
        device = self.run.position.device.torch_device()
        if cfg.checkpoint.save:
            carry_hf_files(self.run)
        if cfg.training.manual_gc:
            gc.disable()
        self.reporter.restart_clock()
        while progress.iteration < self.train_iters:
            self._iterate()
            iteration = progress.iteration
            if cfg.training.eval_interval and iteration % cfg.training.eval_interval == 0:
                self._evaluate("validation")
            if _due(cfg.checkpoint.save, cfg.checkpoint.save_interval, iteration):
                self._save()
                self.saved_at = iteration
            interval = cfg.training.manual_gc_interval
            if cfg.training.manual_gc and interval and iteration % interval == 0:
                gc.collect()
            reason = self.stop.reason(iteration, device)
            if reason is not None:
                say_last(f"stopping after iteration {iteration}: {reason}")
                break
        if cfg.checkpoint.save and self.saved_at != progress.iteration:
            self._save()
            self.saved_at = progress.iteration
        if cfg.checkpoint.only_convert_last_checkpoint:
            self._export()
        if progress.iteration >= self.train_iters:
            self._evaluate("test")

    def _iterate(self) -> None:
        run, progress = self.run, self.run.progress
        self.micro_batches.update(
            progress.consumed_train_samples, consistency_check=True, verbose=False
        )
        batch_size = self.micro_batches.get_current_running_global_batch_size()
        result = train_step(
            run.chunks,
            run.optimizer,
            self.feed.train_batches(),
            num_microbatches=self.micro_batches.get(),
            micro_batch_size=run.batch.micro_batch_size,
            seq_length=run.batch.seq_length,
            objective=self.objective,
            skip_not_finite=run.cfg.training.skip_nan_loss,
        )
        learning_rate = get_canonical_lr_for_logging(run.optimizer.param_groups)
        if result.updated:
            run.scheduler.step(increment=batch_size)
        progress.iteration += 1
        progress.consumed_train_samples += batch_size
        if result.untrained:
            say_last(
                f"warning: iteration {progress.iteration}: {result.untrained} "
                f"{self.objective.untrained} hold no token that is trained; they add nothing to "
                "loss and gradient"
            )
        self._guard(result)
        self._report(result, batch_size, learning_rate or 0.0)

    def _guard(self, result: StepResult) -> None:
        """Tell of an update that was left out, and end a run that cannot go on.

        Raises:
            UserError: nothing but such iterations for a while.
        """
        if result.not_finite is None:
            self.skipped_in_a_row = 0
            return
        iteration = self.run.progress.iteration
        self.skipped_in_a_row += 1
        say_last(
            f"warning: iteration {iteration}: {result.not_finite} not finite; the update is left "
            "out (--skip-nan-loss)"
        )
        if self.skipped_in_a_row == MOST_SKIPPED:
            raise UserError(
                f"loss or gradient was not finite in {MOST_SKIPPED} iterations in a row, up to "
                f"{iteration}: training does not recover. Lower --lr, or look at the data."
            )

    def _report(self, result: StepResult, batch_size: int, learning_rate: float) -> None:
        progress = self.run.progress
        self.reporter.step(
            progress.iteration,
            result,
            consumed_samples=progress.consumed_train_samples,
            learning_rate=learning_rate,
            global_batch_size=batch_size,
            loss_scale=float(self.run.optimizer.get_loss_scale().item()),
        )

    def _evaluate(self, split: str) -> None:
        batch, iterations = self.run.batch, self.run.cfg.training.eval_iters
        batches = self.feed.held_out_batches(split)
        if batches is None:
            return
        found: Totals = evaluate(
            self.run.chunks,
            batches,
            iterations=iterations,
            num_microbatches=batch.global_batch_size
            // (batch.micro_batch_size * self.run.position.data_size),
            micro_batch_size=batch.micro_batch_size,
            seq_length=batch.seq_length,
            objective=self.objective,
        )
        self.reporter.evaluation(self.run.progress.iteration, split, found)

    def _save(self) -> None:
        save_checkpoint(self.run)
        if not self.run.cfg.checkpoint.only_convert_last_checkpoint:
            self._export()
        self.reporter.restart_clock()

    def _export(self) -> None:
        if self.run.cfg.checkpoint.enable_mg2hf_convert:
            export_checkpoint(self.run, self.run.progress.iteration)


def _due(target: str | None, interval: int | None, iteration: int) -> bool:
    return target is not None and interval is not None and iteration % interval == 0
