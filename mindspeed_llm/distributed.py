"""Device, process groups, threads and seeds of a run: what must be there before a model is."""

from __future__ import annotations

import gc
import logging
import os
import random
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch

import mindspeed.megatron_adaptor  # noqa: F401  (before megatron.core is used)
from mindspeed.device import Device, get_device, local_rank
from mindspeed_llm.launch import is_rank
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import ExpertParallel, TensorParallel

# Megatron-Core calls torch under names that are about to change, and looks at gradients that are
# not there; none of it is a user's concern.
_NOISE = (
    "full scope is deprecated",
    "The .grad attribute of a Tensor that is not a leaf",
    r"`torch\.distributed\.\w+` is deprecated",
    "`load_state_dict` is deprecated",
    "Please use DTensor instead",
    # Experts that are not tensor parallel beside layers that are.
    "`sequence_parallel` is set to `True`, but tensor model parallel size is 1",
)
for _message in _NOISE:
    warnings.filterwarnings("ignore", message=_message)
logging.getLogger("megatron.core.rerun_state_machine").setLevel(logging.ERROR)

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config


@dataclass(frozen=True)
class Position:
    """Where this process stands in the parallel layout.

    Attributes:
        expert_rank, expert_size: which of the parts into which the experts are divided.
        expert_tensor_rank, expert_tensor_size: which part of each expert's matrices.
    """

    device: Device
    rank: int
    world: int
    tensor: int
    tensor_size: int
    pipeline: int
    pipeline_size: int
    data: int
    data_size: int
    expert_rank: int = 0
    expert_size: int = 1
    expert_tensor_rank: int = 0
    expert_tensor_size: int = 1

    def tensor_parallel(self, shape: ModelShape, padded_vocab_size: int) -> TensorParallel:
        """The position that weight splits take."""
        experts = None
        if shape.experts is not None:
            experts = ExpertParallel(
                self.expert_rank,
                self.expert_size,
                self.expert_tensor_rank,
                self.expert_tensor_size,
            )
        return TensorParallel.of(shape, self.tensor, self.tensor_size, padded_vocab_size, experts)

    def describe(self) -> str:
        """One line for the start-up block."""
        experts = ""
        if self.expert_size > 1 or self.expert_tensor_size != self.tensor_size:
            experts = f", experts EP {self.expert_size} x TP {self.expert_tensor_size}"
        return (
            f"{self.world} process{'es' if self.world > 1 else ''}: TP {self.tensor_size}, "
            f"PP {self.pipeline_size}, DP {self.data_size}{experts}"
        )


def initialize(cfg: Config, chunks: int = 1) -> Position:
    """Choose the device, join the process group, split it up, and seed every generator.

    Alone (no launcher), the process becomes a group of one. The backend is the device's own:
    a script's ``--distributed-backend nccl`` still means gloo on a CPU.

    Args:
        chunks: model chunks per pipeline stage (virtual pipeline size).
    """
    from megatron.core import parallel_state

    device = get_device()
    device.set_current(local_rank())
    _share_processors(device)
    if not torch.distributed.is_initialized():
        _join(device, cfg.parallel.distributed_timeout_minutes)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=cfg.parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=cfg.parallel.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        expert_model_parallel_size=cfg.moe.expert_model_parallel_size,
        # None: that of the other layers.
        expert_tensor_parallel_size=cfg.moe.expert_tensor_parallel_size,
        order="tp-cp-ep-pp-dp" if cfg.parallel.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp",
        create_gloo_process_groups=True,
    )
    position = _position(device)
    seed_everything(cfg.training.seed, position)
    return position


def seed_everything(seed: int, position: Position) -> None:
    """Seed Python, numpy and torch; pipeline stages differ, data-parallel copies do not."""
    from megatron.core import tensor_parallel

    # Megatron's rule: stages draw different weights, and TP ranks differ only where their
    # parameters are split (its "model parallel" generator).
    seed += 100 * position.pipeline
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed, force_reset_rng=True)


def shutdown() -> None:
    """Leave the process groups, and forget what Megatron keeps of a run.

    The groups lie in cycles of references with the model; the threads that gloo keeps for each,
    which wake up a hundred times a second, end only when those are collected.
    """
    from megatron.core import parallel_state
    from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
    from megatron.core.transformer.moe.token_dispatcher import MoETokenDispatcher

    get_moe_layer_wise_logging_tracker().clear()
    for dispatcher in (o for o in gc.get_objects() if isinstance(o, MoETokenDispatcher)):
        # It keeps tensors of its last call, and their graph, unseen by the collector, the model.
        vars(dispatcher).clear()
    if torch.distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    gc.collect()


def _join(device: Device, timeout_minutes: int) -> None:
    if not is_rank():
        # A group of one needs no meeting place that others could find.
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group(device.backend, store=store, rank=0, world_size=1)
        return
    timeout = timedelta(minutes=timeout_minutes)
    torch.distributed.init_process_group(device.backend, timeout=timeout)


def _share_processors(device: Device) -> None:
    """Ranks on one machine share its cores; more threads than cores would stall each other."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if device.name == "cpu" and ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))


def _position(device: Device) -> Position:
    from megatron.core import parallel_state as state

    return Position(
        device=device,
        rank=torch.distributed.get_rank(),
        world=torch.distributed.get_world_size(),
        tensor=state.get_tensor_model_parallel_rank(),
        tensor_size=state.get_tensor_model_parallel_world_size(),
        pipeline=state.get_pipeline_model_parallel_rank(),
        pipeline_size=state.get_pipeline_model_parallel_world_size(),
        data=state.get_data_parallel_rank(),
        data_size=state.get_data_parallel_world_size(),
        expert_rank=state.get_expert_model_parallel_rank(),
        expert_size=state.get_expert_model_parallel_world_size(),
        expert_tensor_rank=state.get_expert_tensor_parallel_rank(),
        expert_tensor_size=state.get_expert_tensor_parallel_world_size(),
    )
