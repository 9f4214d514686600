"""How many iterations a run has, and how each global batch divides into micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.core.num_microbatches_calculator import (
    ConstantNumMicroBatchesCalculator,
    NumMicroBatchesCalculator,
    RampupBatchsizeNumMicroBatchesCalculator,
)

from mindspeed_llm.training.setup import BatchShape

if TYPE_CHECKING:
    from mindspeed_llm.distributed import Position
    from mindspeed_llm.flags import Config


def build_micro_batches(cfg: Config, position: Position) -> NumMicroBatchesCalculator:
    """Megatron's calculator for a constant or a growing global batch."""
    training, batch = cfg.training, BatchShape.of(cfg)
    sizes = (batch.global_batch_size, batch.micro_batch_size, position.data_size)
    if training.rampup_batch_size is None:
        return ConstantNumMicroBatchesCalculator(*sizes, False, position.rank)
    start, increment, samples = training.rampup_batch_size
    return RampupBatchsizeNumMicroBatchesCalculator(
        *sizes, False, position.rank, start, increment, samples
    )


def train_iterations(cfg: Config) -> int:
    """Iterations of the whole run, from ``--train-iters`` or ``--train-samples``."""
    training, global_batch = cfg.training, BatchShape.of(cfg).global_batch_size
    if training.train_iters is not None:
        return training.train_iters
    if training.train_samples is None:
        return 0
    if training.rampup_batch_size is None:
        return training.train_samples // global_batch
    # Count the iterations of the growing batches as the loop will run them.
    calculator = RampupBatchsizeNumMicroBatchesCalculator(
        global_batch,
        training.micro_batch_size,
        1,
        False,
        1,
        *training.rampup_batch_size,
    )
    consumed = iterations = 0
    ramp_samples = training.rampup_batch_size[2]
    while consumed <= ramp_samples and consumed < training.train_samples:
        calculator.update(consumed, consistency_check=False, verbose=False)
        consumed += calculator.get_current_global_batch_size()
        iterations += 1
    rest = max(0, training.train_samples - consumed)
    return iterations + rest // global_batch
