"""What flags of mixtures of experts imply for each other, and what they cannot be together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mindspeed_llm.flags.config import Config
    from mindspeed_llm.flags.moe import MoeFlags


def settle_experts(config: Config) -> tuple[MoeFlags, list[str]]:
    """The flags of experts with the implied ones set, and a line for each surprising change."""
    moe, notes = config.moe, []
    tensor = config.parallel.tensor_model_parallel_size
    if moe.moe_tp_extend_ep and tensor > 1:
        size = moe.expert_model_parallel_size * tensor
        moe = replace(moe, expert_model_parallel_size=size, expert_tensor_parallel_size=1)
        notes.append(
            f"--moe-tp-extend-ep means --expert-model-parallel-size {size} "
            "--expert-tensor-parallel-size 1"
        )
    if moe.moe_token_dispatcher_type == "alltoall_seq":
        moe = replace(moe, moe_token_dispatcher_type="alltoall")
    if moe.seq_aux:
        moe = replace(moe, moe_router_load_balancing_type="seq_aux_loss")
    if moe.router_gating_in_fp32 and moe.moe_router_dtype is None:
        moe = replace(moe, moe_router_dtype="fp32")
    return moe, notes


def expert_faults(config: Config, world_size: int) -> Iterator[str]:
    """Faults of the flags of experts with the number of processes and the model shape."""
    moe, parallel = config.moe, config.parallel
    tensor = parallel.tensor_model_parallel_size
    parts = moe.expert_model_parallel_size
    shares = moe.expert_tensor_parallel_size or tensor
    if moe.num_experts is None:
        for dest in ("expert_model_parallel_size", "expert_tensor_parallel_size"):
            if getattr(moe, dest) not in (None, 1):
                yield f"--{dest.replace('_', '-')} {getattr(moe, dest)} needs a model with experts"
        return
    if moe.num_experts % parts:
        yield (f"{moe.num_experts} experts do not divide over --expert-model-parallel-size {parts}")
    ranks = world_size // parallel.pipeline_model_parallel_size
    if ranks % (parts * shares):
        yield (
            f"{ranks} processes of a pipeline stage do not divide by expert parallel x expert "
            f"tensor parallel {parts} x {shares} = {parts * shares}"
        )
    pipeline = parallel.pipeline_model_parallel_size
    if parallel.use_tp_pp_dp_mapping and pipeline > 1 and parts * shares != tensor:
        yield (
            "--use-tp-pp-dp-mapping with pipeline stages needs experts that lie as the other "
            "layers do: no expert parallelism, and their tensor-parallel size"
        )
    if moe.moe_ffn_hidden_size and moe.moe_ffn_hidden_size % shares:
        yield (
            f"the experts' width {moe.moe_ffn_hidden_size} does not divide over {shares} ranks; "
            "set --expert-tensor-parallel-size 1"
        )
    shared = moe.moe_shared_expert_intermediate_size
    if shared and shared % tensor:
        yield (
            f"the shared expert's width {shared} does not divide by --tensor-model-parallel-size "
            f"{tensor}"
        )
    if config.trains:
        yield from _training_faults(config)


def _training_faults(config: Config) -> Iterator[str]:
    moe, parallel = config.moe, config.parallel
    further = config.model.mtp_num_layers or 0
    has_experts = (moe.first_k_dense_replace or 0) < (config.model.num_layers or 0) + further
    tensor = parallel.tensor_model_parallel_size
    if has_experts and tensor > 1 and not parallel.sequence_parallel:
        yield (
            "training experts with --tensor-model-parallel-size above 1 needs --sequence-parallel: "
            "without it every rank would send all tokens"
        )
    spread = parallel.pipeline_model_parallel_size > 1 or moe.expert_model_parallel_size > 1
    if config.data.variable_seq_lengths and spread and moe.moe_token_dispatcher_type == "allgather":
        yield (
            "experts and micro-batches of different lengths (--variable-seq-lengths, "
            "--no-pad-to-seq-lengths) need --moe-token-dispatcher-type alltoall"
        )
    if moe.moe_aux_loss_coeff and moe.moe_router_load_balancing_type == "none":
        yield "--moe-aux-loss-coeff needs a --moe-router-load-balancing-type other than none"
    if moe.moe_router_enable_expert_bias and moe.moe_router_score_function != "sigmoid":
        yield "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid"
