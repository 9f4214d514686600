"""Flags of fused operators, communication tricks and memory tricks: speed and memory only."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of, unsupported

ASCEND = "an Ascend kernel that is not connected yet"


@dataclass(frozen=True)
class OpsFlags(Group):
    title = "operators and memory"

    optimization_level: int = flag(
        2,
        "0: only what makes Megatron run on this device; 1: and faster operators; 2: and features.",
        choices=(0, 1, 2),
    )
    use_flash_attn: bool = flag(
        False, "Attention without the matrix of scores (always so).", effect=ALWAYS
    )
    use_fused_rmsnorm: bool = flag(False, "The fastest RMSNorm of the device.", effect=ALWAYS)
    use_fused_swiglu: bool = flag(False, "The fastest SwiGLU of the device.", effect=ALWAYS)
    use_fused_rotary_pos_emb: bool = flag(
        False, "The fastest rotary embedding of the device.", effect=ALWAYS
    )
    use_fusion_attn_v2: bool = flag(
        False, "Second form of Ascend's attention.", effect=neutral(ASCEND)
    )
    apply_rope_fusion: bool = flag(
        True,
        "Megatron's fused rotary embedding.",
        off=("--no-rope-fusion",),
        effect=ALWAYS,
    )
    bias_swiglu_fusion: bool = flag(
        True, "Megatron's fused bias and SwiGLU.", off=("--no-bias-swiglu-fusion",), effect=ALWAYS
    )
    bias_gelu_fusion: bool = flag(
        True, "Megatron's fused bias and GELU.", off=("--no-bias-gelu-fusion",), effect=ALWAYS
    )
    bias_dropout_fusion: bool = flag(
        True, "Megatron's fused bias and dropout.", off=("--no-bias-dropout-fusion",), effect=ALWAYS
    )
    masked_softmax_fusion: bool = flag(
        True,
        "Megatron's fused masked softmax.",
        off=("--no-masked-softmax-fusion",),
        effect=ALWAYS,
    )
    gradient_accumulation_fusion: bool = flag(
        True,
        "Let the matrix product of a weight's gradient add to what earlier micro-batches gave.",
        off=("--no-gradient-accumulation-fusion",),
    )
    persist_layer_norm: bool = flag(
        True, "apex's persistent LayerNorm.", off=("--no-persist-layer-norm",), effect=ALWAYS
    )
    cross_entropy_loss_fusion: bool = flag(
        False, "Fused cross-entropy (always the fastest of the device).", effect=ALWAYS
    )
    cross_entropy_fusion_impl: str = flag(
        "native", "Which.", choices=("native", "te"), effect=ALWAYS
    )
    disable_jit_fuser: bool = flag(False, "No torch.compile of small functions.", effect=ALWAYS)
    shape_order: str = flag(
        "SBH",
        "Layout of Ascend's attention.",
        choices=("SBH", "BSH", "BSND", "BNSD"),
        effect=neutral(ASCEND),
    )
    sparse_mode: int = flag(0, "Mask form of Ascend's attention.", effect=neutral(ASCEND))
    pre_tockens: int = flag(1048576, "Mask window before.", effect=unsupported("attention windows"))
    next_tockens: int = flag(0, "Mask window after.", effect=unsupported("attention windows"))

    # Communication
    use_ascend_coc: bool = flag(
        False,
        "Overlap tensor-parallel products with communication.",
        effect=neutral("overlap of products and communication is not active yet"),
    )
    coc_mode: int = flag(-1, "Mode of that overlap.", effect=part_of("use_ascend_coc"))
    coc_parallel_num: int = flag(1, "Pieces of that overlap.", effect=part_of("use_ascend_coc"))
    coc_fused_kernel: bool = flag(
        False, "Fused form of that overlap.", effect=part_of("use_ascend_coc")
    )
    use_ascend_mc2: bool = flag(
        False,
        "Fused products and communication.",
        deprecated=("--use-mc2",),
        effect=neutral(ASCEND),
    )
    tp_comm_overlap: bool = flag(
        False,
        "TransformerEngine's tensor-parallel overlap.",
        effect=neutral("TransformerEngine is not used"),
    )
    optimize_send_recv_comm: bool = flag(
        False,
        "Own groups for sending and receiving in the pipeline.",
        effect=neutral("separate pipeline groups are not active yet"),
    )
    reset_bucket_group_order: bool = flag(
        False,
        "Order gradient buckets by first use.",
        effect=neutral("reordering buckets is not active yet"),
    )
    param_and_grad_buffer_pad: int | None = flag(
        None, "Alignment of gradient buckets.", effect=neutral("padding is not active yet")
    )
    hccl_group_buffer: str | None = flag(
        None, "Buffers of HCCL groups.", effect=neutral("HCCL buffers are not set yet")
    )
    hccl_group_buffer_adaptive: bool = flag(
        False, "Choose those buffers.", effect=neutral("HCCL buffers are not set yet")
    )

    # Memory
    swap_attention: bool = flag(
        False, "Move activations to the host.", effect=neutral("swapping is not active yet")
    )
    swap_modules: str | None = flag(None, "Which.", effect=part_of("swap_attention"))
    swap_layer_input: bool = flag(
        False, "Move layer inputs to the host.", effect=neutral("swapping is not active yet")
    )
    smart_swap: bool = flag(
        False, "Choose what to swap.", effect=neutral("swapping is not active yet")
    )
    output_layer_slice_num: int = flag(
        1, "Compute the loss in slices.", effect=neutral("sliced loss is not active yet")
    )
    jit_compile: bool = flag(False, "Compile Ascend operators as needed.", effect=neutral(ASCEND))
    ai_framework: str = flag(
        "pytorch",
        "Framework.",
        choices=("pytorch",),
        refused={"mindspore": "MindSpore"},
    )
