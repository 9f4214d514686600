"""Flags of mixture-of-experts models and of multi-head latent attention.

Neither exists yet: ``--num-experts`` and ``--multi-latent-attention`` are refused, and the flags
that only refine them are reported as having no effect when they stand alone (some dense scripts
carry a stray one).
"""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag
from mindspeed_llm.flags.status import part_of, unsupported

EXPERTS = part_of("num_experts")
LATENT = part_of("multi_latent_attention")


@dataclass(frozen=True)
class MoeFlags(Group):
    title = "mixture of experts, latent attention"

    num_experts: int | None = flag(
        None,
        "Number of experts.",
        spellings=("--num-experts", "--num-moe-experts"),
        effect=unsupported("mixture of experts", 0),
    )
    expert_model_parallel_size: int = flag(
        1, "Expert-parallel size.", effect=unsupported("expert parallelism"), at_least=1
    )
    expert_tensor_parallel_size: int | None = flag(
        None, "Tensor-parallel size of the experts.", effect=EXPERTS
    )
    moe_ffn_hidden_size: int | None = flag(
        None,
        "Width of one expert.",
        deprecated=("--moe-intermediate-size",),
        effect=EXPERTS,
    )
    moe_layer_freq: str = flag("1", "Which layers have experts.", effect=EXPERTS)
    first_k_dense_replace: int | None = flag(
        None, "Leading layers without experts.", effect=EXPERTS
    )
    moe_router_topk: int = flag(2, "Experts per token.", effect=EXPERTS)
    moe_router_load_balancing_type: str = flag(
        "aux_loss", "How the router is balanced.", effect=EXPERTS
    )
    moe_router_score_function: str = flag(
        "softmax", "Scores of the router.", choices=("softmax", "sigmoid"), effect=EXPERTS
    )
    moe_router_dtype: str | None = flag(
        None, "Precision of the router.", choices=("fp32", "fp64"), effect=EXPERTS
    )
    moe_router_num_groups: int | None = flag(
        None, "Groups of experts.", deprecated=("--n-group",), effect=EXPERTS
    )
    moe_router_group_topk: int | None = flag(
        None, "Groups a token may use.", deprecated=("--topk-group",), effect=EXPERTS
    )
    moe_router_topk_scaling_factor: float | None = flag(
        None,
        "Factor of the routing weights.",
        deprecated=("--routed-scaling-factor",),
        effect=EXPERTS,
    )
    moe_router_pre_softmax: bool = flag(False, "Softmax before the choice.", effect=EXPERTS)
    moe_router_enable_expert_bias: bool = flag(
        False, "Balance by a bias instead of a loss.", effect=EXPERTS
    )
    moe_router_bias_update_rate: float = flag(1e-3, "Step of that bias.", effect=EXPERTS)
    moe_aux_loss_coeff: float = flag(0.0, "Weight of the balance loss.", effect=EXPERTS)
    moe_z_loss_coeff: float | None = flag(None, "Weight of the z loss.", effect=EXPERTS)
    moe_device_level_aux_loss_coeff: float = flag(
        0.0, "Weight of the balance loss over devices.", effect=EXPERTS
    )
    moe_comm_aux_loss_coeff: float = flag(
        0.0, "Weight of the communication balance loss.", effect=EXPERTS
    )
    moe_token_dispatcher_type: str = flag(
        "allgather",
        "How tokens travel to experts.",
        choices=("allgather", "alltoall", "alltoall_seq", "flex"),
        effect=EXPERTS,
    )
    moe_expert_capacity_factor: float | None = flag(None, "Expert capacity.", effect=EXPERTS)
    moe_pad_expert_input_to_capacity: bool = flag(
        False, "Pad experts to their capacity.", effect=EXPERTS
    )
    moe_shared_expert_intermediate_size: int | None = flag(
        None, "Width of the shared expert.", effect=EXPERTS
    )
    n_shared_experts: int | None = flag(None, "Number of shared experts.", effect=EXPERTS)
    shared_expert_gate: bool = flag(False, "Gate the shared expert.", effect=EXPERTS)
    shared_expert_gate_output_dimension: int = flag(1, "Outputs of that gate.", effect=EXPERTS)
    moe_shared_expert_overlap: bool = flag(
        False, "Overlap the shared expert with communication.", effect=EXPERTS
    )
    moe_grouped_gemm: bool = flag(False, "One grouped product for all experts.", effect=EXPERTS)
    gemm_gradient_accumulation_fusion: bool = flag(
        False, "Accumulate gradients in the grouped product.", effect=EXPERTS
    )
    moe_permute_fusion: bool = flag(
        False,
        "Fused permutation of tokens.",
        spellings=("--moe-permute-fusion", "--use-fused-moe-token-permute-and-unpermute"),
        effect=EXPERTS,
    )
    moe_permutation_async_comm: bool = flag(
        False, "Overlap the permutation's communication.", effect=EXPERTS
    )
    moe_alltoall_overlap_comm: bool = flag(False, "Overlap the all-to-all.", effect=EXPERTS)
    moe_allgather_overlap_comm: bool = flag(False, "Overlap the all-gather.", effect=EXPERTS)
    moe_fb_overlap: bool = flag(
        False, "Overlap forward and backward of two micro-batches.", effect=EXPERTS
    )
    moe_zero_memory: str = flag(
        "disable",
        "Recompute expert activations.",
        choices=("disable", "level0", "level1"),
        effect=EXPERTS,
    )
    moe_tp_extend_ep: bool = flag(
        False, "Use the tensor-parallel ranks for more experts.", effect=EXPERTS
    )
    norm_topk_prob: bool = flag(False, "Routing weights sum to one.", effect=EXPERTS)
    seq_aux: bool = flag(False, "Balance loss per sequence.", effect=EXPERTS)
    router_gating_in_fp32: bool = flag(False, "Router in fp32.", effect=EXPERTS)
    topk_softmax_in_fp32: bool = flag(False, "Softmax of the choice in fp32.", effect=EXPERTS)
    fix_router: bool = flag(False, "Round-robin routing for speed tests.", effect=EXPERTS)
    num_zero_experts: int | None = flag(None, "Experts that do nothing.", effect=EXPERTS)

    multi_latent_attention: bool = flag(
        False,
        "Multi-head latent attention.",
        deprecated=("--multi-head-latent-attention",),
        effect=unsupported("multi-head latent attention"),
    )
    q_lora_rank: int | None = flag(None, "Rank of the query.", effect=LATENT)
    kv_lora_rank: int = flag(32, "Rank of key and value.", effect=LATENT)
    qk_head_dim: int = flag(
        128, "Head size without rotation.", deprecated=("--qk-nope-head-dim",), effect=LATENT
    )
    qk_pos_emb_head_dim: int = flag(
        64, "Rotated head size.", deprecated=("--qk-rope-head-dim",), effect=LATENT
    )
    v_head_dim: int = flag(128, "Head size of the value.", effect=LATENT)
    mla_mm_split: bool = flag(False, "Split the up-projections.", effect=LATENT)
    mla_zero_memory: bool = flag(False, "Recompute the up-projections.", effect=LATENT)
    mla_swap_core_attn_out: bool = flag(False, "Swap the attention output.", effect=LATENT)
