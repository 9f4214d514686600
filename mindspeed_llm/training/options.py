"""Flags to Megatron's own settings objects: transformer, data parallelism, optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig

from mindspeed.device import get_device

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config
    from mindspeed_llm.models.layout import PipelineLayout

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def params_dtype(cfg: Config) -> torch.dtype:
    """The dtype that the model computes in."""
    return DTYPES["bf16" if cfg.training.bf16 else "fp16" if cfg.training.fp16 else "fp32"]


def model_options(cfg: Config, layout: PipelineLayout) -> dict[str, Any]:
    """Fields of ``TransformerConfig`` that are about the run, not about the architecture."""
    model, training, parallel = cfg.model, cfg.training, cfg.parallel
    interleaved = layout.chunks > 1
    return {
        "tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "sequence_parallel": sequence_parallel(cfg),
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        "init_method_std": model.init_method_std,
        "attention_softmax_in_fp32": model.attention_softmax_in_fp32,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "bias_activation_fusion": True,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": cfg.ops.gradient_accumulation_fusion,
        "recompute_granularity": training.recompute_granularity,
        "recompute_method": training.recompute_method,
        "recompute_num_layers": training.recompute_num_layers,
        "recompute_modules": list(training.recompute_modules or ["core_attn"]),
        "distribute_saved_activations": training.distribute_saved_activations,
        "deterministic_mode": training.deterministic_mode,
        # Loss and gradients are sums over tokens until the end of the batch, then divided by
        # the number of tokens in the global batch: no mean of means.
        "calculate_per_token_loss": True,
        # Between the same two ranks (PP=2) the messages of two chunks must not mix. Batched ones
        # do everywhere; overlapped ones on gloo, which pairs messages by their order alone.
        "batch_p2p_comm": not interleaved,
        "overlap_p2p_comm": (
            interleaved and cfg.parallel.overlap_p2p_comm and get_device().name != "cpu"
        ),
        "deallocate_pipeline_outputs": True,
    }


def sequence_parallel(cfg: Config) -> bool:
    """Sequence parallelism needs something to be parallel over."""
    return cfg.parallel.sequence_parallel and cfg.parallel.tensor_model_parallel_size > 1


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
