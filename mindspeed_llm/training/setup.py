"""Everything a training loop works on, built in the one order that is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import (
    MegatronOptimizer,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from mindspeed_llm.checkpoint.metadata import CheckpointLayout
from mindspeed_llm.distributed import Position
from mindspeed_llm.live_model import LiveModel, build_live_model, params_dtype
from mindspeed_llm.model_source import ResolvedModel
from mindspeed_llm.models.gpt import GPTModel
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.training import options
from mindspeed_llm.training.schedule import build_scheduler
from mindspeed_llm.training.state import Progress

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config


@dataclass(frozen=True)
class BatchShape:
    """Size of a step: sequences in all, sequences of one micro-batch, tokens of a sequence."""

    global_batch_size: int
    micro_batch_size: int
    seq_length: int

    @classmethod
    def of(cls, cfg: Config) -> BatchShape:
        """From flags that have been checked and filled in."""
        training = cfg.training
        assert training.global_batch_size is not None and training.seq_length is not None
        return cls(training.global_batch_size, training.micro_batch_size, training.seq_length)


@dataclass
class Run:
    """A training run: its fixed settings, and the objects that change.

    Attributes:
        models: the bare model chunks of this rank.
        chunks: the same, wrapped for data parallelism and mixed precision.
    """

    cfg: Config
    model: ResolvedModel
    position: Position
    layout: PipelineLayout
    padded_vocab_size: int
    config: TransformerConfig
    models: list[GPTModel]
    chunks: list[DistributedDataParallel]
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    progress: Progress
    batch: BatchShape

    @property
    def checkpoint_layout(self) -> CheckpointLayout:
        """How a checkpoint of this run is divided over ranks."""
        return self.model.checkpoint_layout(self.cfg)

    @property
    def rank_file_copy(self) -> int:
        """How many processes before this one hold the same: 0 for the one that writes."""
        at = self.position
        return self.checkpoint_layout.grid.copy_of(at.tensor + at.tensor_size * at.data)

    @property
    def rank_folder(self) -> str:
        """Name of this rank's folder in a checkpoint of format torch."""
        at = self.position
        expert_rank = at.expert_rank if self.model.shape.experts is not None else 0
        return self.checkpoint_layout.grid.folder(at.tensor, at.pipeline, expert_rank)


def build_run(
    cfg: Config,
    model: ResolvedModel,
    position: Position,
    train_iters: int,
    *,
    load_weights: bool,
) -> tuple[Run, str]:
    """Build model, optimizer and schedule.

    Args:
        load_weights: fill the model from ``model.source`` now, before the optimizer takes its
            copies; a full resume loads later instead.

    Returns:
        The run, and a line for the start-up block on what was loaded ("" for nothing).
    """
    batch = BatchShape.of(cfg)
    live = build_live_model(cfg, model, position, load_weights=load_weights)
    chunks = _wrap(cfg, live)
    optimizer_config = options.optimizer_config(cfg)
    optimizer = get_megatron_optimizer(
        optimizer_config,
        chunks,
        config_overrides=get_standard_config_overrides(optimizer_config),
        use_gloo_process_groups=True,
    )
    _connect(cfg, live.config, chunks, optimizer)
    run = Run(
        cfg=cfg,
        model=model,
        position=position,
        layout=live.layout,
        padded_vocab_size=live.padded_vocab_size,
        config=live.config,
        models=live.chunks,
        chunks=chunks,
        optimizer=optimizer,
        scheduler=build_scheduler(cfg, optimizer, train_iters, batch.global_batch_size),
        progress=Progress(),
        batch=batch,
    )
    return run, live.loaded


def _wrap(cfg: Config, live: LiveModel) -> list[DistributedDataParallel]:
    """Cast, and put gradients into contiguous buffers."""
    ddp_config = options.data_parallel_config(cfg)
    return [
        DistributedDataParallel(
            config=live.config,
            ddp_config=ddp_config,
            module=module,
            # Communication of later chunks is not on the critical path.
            disable_bucketing=number > 0,
        )
        for number, module in enumerate(cast_modules(cfg, live))
    ]


def cast_modules(cfg: Config, live: LiveModel) -> list[torch.nn.Module]:
    """The chunks, which take and give fp32 where they compute in a shorter type."""
    if params_dtype(cfg) == torch.float32:
        return [*live.chunks]
    return [Float16Module(live.config, model) for model in live.chunks]


def _connect(
    cfg: Config,
    config: TransformerConfig,
    chunks: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
) -> None:
    """Give Megatron's schedules the hooks that its own training loop would set."""

    def one_or_all(functions: list) -> object:
        return functions[0] if len(functions) == 1 else functions

    config.grad_scale_func = optimizer.scale_loss
    # Without this, replicated parameters drift apart over TP and tied embeddings over PP.
    config.finalize_model_grads_func = finalize_model_grads
    if cfg.parallel.overlap_grad_reduce:
        config.no_sync_func = one_or_all([chunk.no_sync for chunk in chunks])
        if cfg.parallel.align_grad_reduce:
            config.grad_sync_func = one_or_all([chunk.start_grad_sync for chunk in chunks])
    if cfg.parallel.overlap_param_gather and cfg.parallel.align_param_gather:
        config.param_sync_func = one_or_all([chunk.start_param_sync for chunk in chunks])
