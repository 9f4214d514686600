"""Flags to Megatron's own settings objects: data parallelism and the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig

from mindspeed_llm.live_model import params_dtype

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config


def data_parallel_config(cfg: Config) -> DistributedDataParallelConfig:
    """How gradients are accumulated and reduced."""
    parallel, training = cfg.parallel, cfg.training
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=training.bf16 or training.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=parallel.overlap_grad_reduce,
        overlap_param_gather=parallel.overlap_param_gather,
        align_param_gather=parallel.align_param_gather,
        use_distributed_optimizer=parallel.use_distributed_optimizer,
        check_for_nan_in_grad=training.check_for_nan_in_loss_and_grad,
        bucket_size=parallel.ddp_bucket_size,
        average_in_collective=False,
    )


def optimizer_config(cfg: Config) -> OptimizerConfig:
    """Adam's settings, precision and gradient clipping."""
    optimizer, training, parallel = cfg.optimizer, cfg.training, cfg.parallel
    return OptimizerConfig(
        optimizer="adam",
        lr=optimizer.lr,
        min_lr=optimizer.min_lr,
        weight_decay=optimizer.weight_decay,
        fp16=training.fp16,
        bf16=training.bf16,
        params_dtype=params_dtype(cfg),
        adam_beta1=optimizer.adam_beta1,
        adam_beta2=optimizer.adam_beta2,
        adam_eps=optimizer.adam_eps,
        clip_grad=optimizer.clip_grad,
        loss_scale=optimizer.loss_scale,
        initial_loss_scale=optimizer.initial_loss_scale,
        min_loss_scale=optimizer.min_loss_scale,
        loss_scale_window=optimizer.loss_scale_window,
        hysteresis=optimizer.hysteresis,
        log_num_zeros_in_grad=cfg.logging.log_num_zeros_in_grad,
        use_distributed_optimizer=parallel.use_distributed_optimizer,
        overlap_param_gather=parallel.overlap_param_gather,
    )
