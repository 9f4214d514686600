"""What a run reports: Megatron's log line, ``metrics.jsonl``, and TensorBoard.

The last rank writes all three: it is the one that knows the loss.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mindspeed_llm.training.step import StepResult, Totals

if TYPE_CHECKING:
    from mindspeed.device import Device

MIB = 1024 * 1024


def is_last_rank() -> bool:
    """Whether this rank writes the log."""
    return torch.distributed.get_rank() == torch.distributed.get_world_size() - 1


def say_last(text: str) -> None:
    """Print on the last rank, at once even through a pipe."""
    if is_last_rank():
        print(text, flush=True)


@dataclass
class _Window:
    """What happened since the last log line."""

    losses: list[float] = field(default_factory=list)
    further: list[tuple[float, ...]] = field(default_factory=list)
    router: list[dict[str, float]] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    updates_skipped: int = 0
    nan: int = 0
    iterations: int = 0
    tokens: int = 0
    trained: int = 0
    started: float = field(default_factory=time.perf_counter)


class Reporter:
    """Collects iterations and writes a line every ``interval`` of them.

    Args:
        interval: iterations per line.
        train_iters: iterations of the whole run.
        flops_per_sequence: operations of one sequence's forward and backward.
        folder: where ``metrics.jsonl`` goes; None for nowhere.
        resumed_at: rows of ``metrics.jsonl`` beyond this iteration are dropped, so that the
            file tells of one continuous run.
    """

    def __init__(
        self,
        *,
        interval: int,
        train_iters: int,
        seq_length: int,
        flops_per_sequence: float,
        device: Device,
        folder: Path | None,
        tensorboard_dir: str | None,
        resumed_at: int,
        log_zeros: bool,
    ) -> None:
        self._interval = interval
        self._train_iters = train_iters
        self._seq_length = seq_length
        self._flops = flops_per_sequence
        self._device = device
        self._log_zeros = log_zeros
        self._window = _Window()
        self._memory_reported = False
        self._file = None
        self._board = None
        if is_last_rank():
            if folder is not None:
                self._file = _open_metrics(folder / "metrics.jsonl", resumed_at)
            if tensorboard_dir is not None:
                from torch.utils.tensorboard import SummaryWriter

                self._board = SummaryWriter(tensorboard_dir)

    def step(
        self,
        iteration: int,
        result: StepResult,
        *,
        consumed_samples: int,
        learning_rate: float,
        global_batch_size: int,
        loss_scale: float,
    ) -> None:
        """Take note of an iteration; write if it ends a window."""
        window = self._window
        window.iterations += 1
        if result.loss is not None:
            if math.isfinite(result.loss):
                window.losses.append(result.loss)
                window.further.append(result.further_losses)
            else:
                window.nan += 1
        window.router.append(result.router_losses)
        if result.metrics:
            window.metrics.append(result.metrics)
        window.tokens += result.tokens
        window.trained += result.trained_tokens
        window.updates_skipped += not result.updated
        if iteration % self._interval and iteration != self._train_iters:
            return
        now = time.perf_counter()
        seconds = (now - window.started) / window.iterations
        elapsed = now - window.started
        # In full rows: attention of shorter ones costs less than this counts.
        sequences_per_second = window.tokens / self._seq_length / elapsed
        world = torch.distributed.get_world_size()
        record = {
            "iteration": iteration,
            "consumed_samples": consumed_samples,
            "seconds_per_iteration": seconds,
            "tokens_per_second": window.tokens / elapsed,
            "trained_tokens_per_second": (
                window.trained / elapsed if window.trained < window.tokens else None
            ),
            "tflops_per_device": sequences_per_second * self._flops / world / 1e12,
            "learning_rate": learning_rate,
            "global_batch_size": global_batch_size,
            "lm_loss": _mean(window.losses) if window.losses else None,
            **{
                f"mtp_{layer}_loss": _mean(losses)
                for layer, losses in enumerate(zip(*window.further, strict=True), start=1)
            },
            **{
                name: _mean([losses[name] for losses in window.router])
                for name in result.router_losses
            },
            **{
                name: _mean([found[name] for found in window.metrics if name in found])
                for name in result.metrics
            },
            "loss_scale": loss_scale,
            "grad_norm": result.grad_norm,
            "num_zeros": result.num_zeros if self._log_zeros else None,
            "skipped_iterations": window.updates_skipped,
            "nan_iterations": window.nan,
        }
        say_last(self._line(record, [*result.router_losses, *result.metrics]))
        self._record(record)
        self._report_memory(iteration)
        self._window = _Window()

    def evaluation(self, iteration: int, split: str, found: Totals) -> None:
        """Report means over held-out data, and keep its time out of the training speed."""
        loss = found.mean
        if loss is not None:
            # Only the loss of each next token is the logarithm of a perplexity.
            perplexity = math.exp(min(20.0, loss))
            further = [f"{name}: {value:.6E}" for name, value in found.metrics.items()] or [
                f"lm loss PPL: {perplexity:.6E}"
            ]
            say_last(
                f" {split} loss at iteration {iteration} | lm loss value: {loss:.6E} | "
                f"{' | '.join(further)} |"
            )
            metrics = {f"{split}_{name}": value for name, value in found.metrics.items()}
            self._record({"iteration": iteration, f"{split}_lm_loss": loss, **metrics})
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave out of the speed what was done since the last iteration (a save, …)."""
        if self._window.iterations == 0:
            self._window.started = time.perf_counter()

    def close(self) -> None:
        """Finish the files."""
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()

    def _line(self, record: dict[str, Any], further: Iterable[str]) -> str:
        """Megatron's log line, field by field, with tokens/s added after the throughput."""
        loss, norm = record["lm_loss"], record["grad_norm"]
        parts = [
            f" [{datetime.now():%Y-%m-%d %H:%M:%S}] iteration {record['iteration']:8d}/"
            f"{self._train_iters:8d}",
            f"consumed samples: {record['consumed_samples']:12d}",
            f"elapsed time per iteration (ms): {1000 * record['seconds_per_iteration']:.1f}",
            f"throughput per GPU (TFLOP/s/GPU): {record['tflops_per_device']:.3f}",
            f"tokens per second: {record['tokens_per_second']:.1f}",
            f"learning rate: {record['learning_rate']:.6E}",
            f"global batch size: {record['global_batch_size']:5d}",
            *([] if loss is None else [f"lm loss: {loss:.6E}"]),
            *(
                f"{name.replace('_loss', ' loss')}: {value:.6E}"
                for name, value in record.items()
                if name.startswith("mtp_")
            ),
            *(f"{name}: {record[name]:.6E}" for name in further),
            f"loss scale: {record['loss_scale']:.1f}",
            *([] if norm is None else [f"grad norm: {norm:.3f}"]),
            *([] if record["num_zeros"] is None else [f"num zeros: {record['num_zeros']}"]),
            f"number of skipped iterations: {record['skipped_iterations']:3d}",
            f"number of nan iterations: {record['nan_iterations']:3d} |",
        ]
        return " | ".join(parts)

    def _record(self, record: dict[str, Any]) -> None:
        kept = {name: value for name, value in record.items() if value is not None}
        if self._file is not None:
            self._file.write(json.dumps(kept) + "\n")
        if self._board is not None:
            for name, value in kept.items():
                if name != "iteration":
                    self._board.add_scalar(name, value, kept["iteration"])

    def _report_memory(self, iteration: int) -> None:
        """Once, after the first window: by then everything has been allocated."""
        if self._memory_reported:
            return
        self._memory_reported = True
        current, peak = self._device.memory_bytes()
        print(
            f"[Rank {torch.distributed.get_rank()}] (after {iteration} iterations) memory (MB) | "
            f"allocated: {current / MIB:.1f} | max allocated: {peak / MIB:.1f}",
            flush=True,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _open_metrics(path: Path, resumed_at: int):
    """Open for appending, without the rows of iterations that will be repeated."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        kept = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if _iteration_of(line) <= resumed_at
        ]
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    return path.open("a", encoding="utf-8", buffering=1)


def _iteration_of(line: str) -> float:
    try:
        return json.loads(line)["iteration"]
    except (json.JSONDecodeError, KeyError):
        return math.inf  # the cut-off last line of a killed run
