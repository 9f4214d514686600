"""Flags of the parallel layout and of the communication that goes with it."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, comma_numbers, flag
from mindspeed_llm.flags.status import neutral, part_of, unsupported

CONTEXT = part_of("context_parallel_size")


@dataclass(frozen=True)
class ParallelFlags(Group):
    title = "parallel layout"

    nproc: int | None = flag(
        None, "Start this many processes on this machine instead of using torchrun.", at_least=1
    )
    tensor_model_parallel_size: int = flag(1, "Processes that share each layer.", at_least=1)
    pipeline_model_parallel_size: int = flag(1, "Pipeline stages.", at_least=1)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "Interleaved schedule: layers of one model chunk.", at_least=1
    )
    num_virtual_stages_per_pipeline_rank: int | None = flag(
        None,
        "Interleaved schedule: model chunks of one stage.",
        effect=unsupported(
            "virtual stages by count (use --num-layers-per-virtual-pipeline-stage)", 1
        ),
    )
    num_layer_list: tuple[int, ...] | None = flag(
        None,
        "Layers of each pipeline stage where they are uneven, e.g. 15,15,15,16.",
        convert=comma_numbers,
        at_least=1,
    )
    sequence_parallel: bool = flag(
        False, "Split norms and dropouts over the sequence; off when tensor parallel is 1."
    )
    context_parallel_size: int = flag(
        1,
        "Processes that share each sequence.",
        at_least=1,
        effect=unsupported("context parallelism"),
    )
    noop_layers: tuple[int, ...] | None = flag(
        None,
        "Places of layers that do nothing, e.g. 61,62,63; --num-layers counts them.",
        convert=comma_numbers,
        at_least=0,
    )
    schedules_method: str | None = flag(
        None, "Another pipeline schedule.", effect=unsupported("DualPipeV schedule")
    )
    pipeline_model_parallel_layout: str | None = flag(
        None,
        "Pipeline layout as a string.",
        effect=unsupported("pipeline layout strings (use --num-layer-list)"),
    )
    decoder_first_pipeline_num_layers: int | None = flag(
        None,
        "Layers of the first stage.",
        effect=unsupported("first-stage layer count (use --num-layer-list)"),
    )
    decoder_last_pipeline_num_layers: int | None = flag(
        None,
        "Layers of the last stage.",
        effect=unsupported("last-stage layer count (use --num-layer-list)"),
    )
    tp_2d: bool = flag(
        False, "Tensor parallel in two dimensions.", effect=unsupported("2-D tensor parallelism")
    )
    use_tp_pp_dp_mapping: bool = flag(
        False, "Order ranks TP, PP, DP instead of TP, DP, PP.", tools=TRAINERS
    )

    # Data parallel
    use_distributed_optimizer: bool = flag(
        False, "Share the optimizer state among data-parallel ranks.", tools=TRAINERS
    )
    overlap_grad_reduce: bool = flag(
        False, "Reduce gradients while the backward pass runs.", tools=TRAINERS
    )
    overlap_param_gather: bool = flag(
        False, "Gather updated parameters while the forward pass runs.", tools=TRAINERS
    )
    overlap_p2p_comm: bool = flag(
        True,
        "Overlap pipeline messages with computation (interleaved schedule only).",
        off=("--no-overlap-p2p-communication",),
        effect=neutral("on a CPU pipeline messages are never overlapped", "cuda", "npu"),
        tools=TRAINERS,
    )
    align_grad_reduce: bool = flag(
        True,
        "Start gradient reductions of all stages together.",
        off=("--no-align-grad-reduce",),
        tools=TRAINERS,
    )
    align_param_gather: bool = flag(
        True,
        "Start parameter gathers of all stages together (interleaved schedule only).",
        off=("--no-align-param-gather",),
        tools=TRAINERS,
    )
    ddp_bucket_size: int | None = flag(
        None, "Elements of a gradient bucket.", at_least=1, tools=TRAINERS
    )
    ddp_average_in_collective: bool = flag(
        False,
        "Average inside the gradient reduction.",
        effect=neutral("gradients are summed, and divided by the number of tokens"),
        tools=TRAINERS,
    )
    use_torch_fsdp2: bool = flag(
        False, "torch's FSDP2.", effect=unsupported("FSDP2"), tools=TRAINERS
    )
    use_megatron_fsdp: bool = flag(
        False,
        "Megatron's FSDP.",
        spellings=("--use-megatron-fsdp", "--use-custom-fsdp"),
        effect=unsupported("Megatron FSDP"),
        tools=TRAINERS,
    )
    num_distributed_optimizer_instances: int = flag(
        1,
        "Copies of the distributed optimizer.",
        effect=unsupported("several distributed-optimizer instances"),
        tools=TRAINERS,
    )

    # Process groups
    distributed_backend: str = flag(
        "nccl",
        "Communication library; on a CPU gloo is used whatever is asked for.",
        choices=("nccl", "gloo", "hccl"),
    )
    distributed_timeout_minutes: int = flag(10, "Time-out of collectives.", at_least=1)
    local_rank: int | None = flag(
        None,
        "Passed by old launchers.",
        effect=neutral("the launcher's LOCAL_RANK is used"),
    )
    enable_gloo_process_groups: bool = flag(
        True,
        "Also make gloo groups beside those of the device.",
        off=("--disable-gloo-process-groups", "--disable-gloo-group"),
        effect=neutral("gloo groups are always made"),
    )
    nccl_communicator_config_path: str | None = flag(
        None, "Settings of NCCL communicators.", effect=neutral("NCCL tuning is not active yet")
    )

    # Context parallel
    context_parallel_algo: str = flag(
        "megatron_cp_algo",
        "Context-parallel algorithm.",
        choices=(
            "megatron_cp_algo",
            "ulysses_cp_algo",
            "hybrid_cp_algo",
            "adaptive_cp_algo",
            "hybrid_adaptive_cp_algo",
            "kvallgather_cp_algo",
            "mamba_cp_algo",
        ),
        effect=CONTEXT,
    )
    cp_comm_type: tuple[str, ...] = flag(
        ("p2p",), "Megatron's context-parallel communication.", nargs="+", effect=CONTEXT
    )
    ulysses_degree_in_cp: int | None = flag(None, "Ulysses part of hybrid.", effect=CONTEXT)
    cp_window_size: int = flag(1, "Inner ring of a double ring.", effect=CONTEXT)
    attention_mask_type: str = flag(
        "causal",
        "Mask of context parallelism.",
        choices=("causal", "general"),
        deprecated=("--cp-attention-mask-type",),
        effect=CONTEXT,
    )
    use_cp_send_recv_overlap: bool = flag(False, "Overlap the ring.", effect=CONTEXT)
    use_fused_ring_attention_update: bool = flag(False, "Fused ring update.", effect=CONTEXT)
    kv_head_repeat_before_uly_alltoall: str = flag(
        "True",
        "Repeat key/value heads before Ulysses.",
        choices=("True", "False"),
        effect=CONTEXT,
    )
