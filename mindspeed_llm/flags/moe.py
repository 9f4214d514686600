"""Flags of mixture-of-experts models and of multi-head latent attention.

Those that only refine ``--num-experts`` or ``--multi-latent-attention`` are reported as having no
effect where the model has neither (some dense scripts carry a stray one).
"""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, flag, whole_number
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of, unsupported

EXPERTS = part_of("num_experts")
NO_OVERLAP = neutral("the experts' communication is not overlapped")
LATENT = part_of("multi_latent_attention")


def _none_if_zero(text: str) -> int | None:
    return whole_number(text) or None


def _zero_if_negative(text: str) -> int:
    return max(0, whole_number(text))


@dataclass(frozen=True)
class MoeFlags(Group):
    title = "mixture of experts, latent attention"

    num_experts: int | None = flag(
        None,
        "Number of routed experts of a layer.",
        spellings=("--num-experts", "--num-moe-experts"),
        convert=_none_if_zero,
    )
    expert_model_parallel_size: int = flag(
        1, "Parts into which the experts are divided, over data-parallel ranks.", at_least=1
    )
    expert_tensor_parallel_size: int | None = flag(
        None,
        "Ranks that share each expert's matrices; as many as share the other layers if not given.",
        at_least=1,
    )
    moe_tp_extend_ep: bool = flag(
        False,
        "Divide the experts over the tensor-parallel ranks too, instead of each expert's matrices.",
        effect=EXPERTS,
    )

    # Architecture
    moe_ffn_hidden_size: int | None = flag(
        None,
        "Width of one expert.",
        deprecated=("--moe-intermediate-size",),
        effect=EXPERTS,
        at_least=1,
    )
    first_k_dense_replace: int | None = flag(
        None,
        "Leading layers with an MLP instead of experts; -1 for none.",
        convert=_zero_if_negative,
        effect=EXPERTS,
    )
    moe_layer_freq: str = flag(
        "1",
        "Which layers have experts; 1 and -1 say all but the --first-k-dense-replace first ones.",
        effect=unsupported("experts in some layers only (use --first-k-dense-replace)", "-1"),
    )
    moe_router_topk: int = flag(2, "Experts per token.", effect=EXPERTS, at_least=1)
    moe_router_score_function: str = flag(
        "softmax", "Scores of the router.", choices=("softmax", "sigmoid"), effect=EXPERTS
    )
    moe_router_pre_softmax: bool = flag(
        False,
        "Weights are scores among all experts, unless --norm-topk-prob; else among the chosen.",
        effect=EXPERTS,
    )
    norm_topk_prob: bool = flag(
        False, "The chosen experts' scores are divided by their sum.", effect=EXPERTS
    )
    moe_router_topk_scaling_factor: float | None = flag(
        None,
        "Factor of the routing weights.",
        deprecated=("--routed-scaling-factor",),
        effect=EXPERTS,
    )
    moe_router_enable_expert_bias: bool = flag(
        False,
        "Balance by a bias of each expert that takes part in the choice only.",
        effect=EXPERTS,
    )
    moe_router_num_groups: int | None = flag(
        None, "Groups of experts.", deprecated=("--n-group",), effect=EXPERTS, at_least=1
    )
    moe_router_group_topk: int | None = flag(
        None,
        "Groups a token may use.",
        deprecated=("--topk-group",),
        effect=EXPERTS,
        at_least=1,
    )
    moe_shared_expert_intermediate_size: int | None = flag(
        None, "Width of the expert that every token visits.", effect=EXPERTS, at_least=1
    )
    n_shared_experts: int | None = flag(
        None,
        "That width in units of --moe-ffn-hidden-size.",
        effect=EXPERTS,
        at_least=0,
    )
    shared_expert_gate: bool = flag(
        False, "Scale the shared expert's output by a gate.", effect=EXPERTS
    )
    shared_expert_gate_output_dimension: int = flag(
        1, "Outputs of that gate.", effect=unsupported("a gate for each channel")
    )
    num_zero_experts: int | None = flag(
        None, "Experts that do nothing.", effect=unsupported("experts that do nothing", 0)
    )

    # Training
    moe_router_load_balancing_type: str = flag(
        "aux_loss",
        "Loss that balances the experts, over a micro-batch or over each sequence.",
        choices=("aux_loss", "seq_aux_loss", "none"),
        refused={
            "global_aux_loss": "a balance loss over the global batch",
            "sinkhorn": "Sinkhorn balancing",
            "group_limited_greedy": "balance losses over devices (use aux_loss; the groups come "
            "from --moe-router-num-groups)",
            "softmax_topk": "softmax_topk balancing",
            "pai_megatron_aux_loss": "pai_megatron_aux_loss balancing",
            "sparsemixer_topk": "SparseMixer routing",
        },
        effect=EXPERTS,
        tools=TRAINERS,
    )
    moe_aux_loss_coeff: float = flag(
        0.0, "Weight of the balance loss.", effect=EXPERTS, at_least=0.0, tools=TRAINERS
    )
    seq_aux: bool = flag(
        False,
        "Means --moe-router-load-balancing-type seq_aux_loss.",
        effect=EXPERTS,
        tools=TRAINERS,
    )
    moe_z_loss_coeff: float | None = flag(
        None,
        "Weight of the loss that keeps the router's logits small.",
        effect=EXPERTS,
        at_least=0.0,
        tools=TRAINERS,
    )
    moe_router_bias_update_rate: float = flag(
        1e-3,
        "Step of --moe-router-enable-expert-bias at each iteration.",
        effect=EXPERTS,
        tools=TRAINERS,
    )
    moe_router_dtype: str | None = flag(
        None,
        "Precision of the router's logits and weights (scores are fp32 anyway).",
        choices=("fp32", "fp64"),
        effect=EXPERTS,
    )
    router_gating_in_fp32: bool = flag(False, "Means --moe-router-dtype fp32.", effect=EXPERTS)
    topk_softmax_in_fp32: bool = flag(False, "Scores are fp32 anyway.", effect=ALWAYS)
    moe_token_dispatcher_type: str = flag(
        "allgather",
        "How tokens travel to experts; alltoall_seq is computed as alltoall.",
        choices=("allgather", "alltoall", "alltoall_seq"),
        refused={"flex": "DeepEP"},
        effect=EXPERTS,
    )
    moe_expert_capacity_factor: float | None = flag(
        None, "Expert capacity.", effect=unsupported("dropping of tokens")
    )
    moe_pad_expert_input_to_capacity: bool = flag(
        False, "Pad experts to their capacity.", effect=unsupported("dropping of tokens")
    )
    moe_device_level_aux_loss_coeff: float = flag(
        0.0,
        "Weight of the balance loss over devices.",
        effect=unsupported("balance losses over devices"),
    )
    moe_comm_aux_loss_coeff: float = flag(
        0.0,
        "Weight of the communication balance loss.",
        effect=unsupported("balance losses over devices"),
    )
    fix_router: bool = flag(
        False,
        "Round-robin routing for speed tests.",
        effect=unsupported("routing that ignores the router"),
    )

    # Speed and memory
    moe_grouped_gemm: bool = flag(
        False,
        "One grouped product for all experts.",
        effect=neutral("experts are computed one after the other"),
    )
    gemm_gradient_accumulation_fusion: bool = flag(
        False,
        "Accumulate gradients in the grouped product.",
        effect=neutral("experts are computed one after the other"),
    )
    moe_permute_fusion: bool = flag(
        False,
        "Fused permutation of tokens.",
        spellings=("--moe-permute-fusion", "--use-fused-moe-token-permute-and-unpermute"),
        effect=neutral("tokens are permuted by torch's own operators"),
    )
    moe_permutation_async_comm: bool = flag(
        False, "Overlap the permutation's communication.", effect=NO_OVERLAP
    )
    moe_alltoall_overlap_comm: bool = flag(False, "Overlap the all-to-all.", effect=NO_OVERLAP)
    moe_allgather_overlap_comm: bool = flag(False, "Overlap the all-gather.", effect=NO_OVERLAP)
    moe_shared_expert_overlap: bool = flag(
        False, "Overlap the shared expert with communication.", effect=NO_OVERLAP
    )
    moe_fb_overlap: bool = flag(
        False, "Overlap forward and backward of two micro-batches.", effect=NO_OVERLAP
    )
    moe_zero_memory: str = flag(
        "disable",
        "Recompute expert activations.",
        choices=("disable", "level0", "level1"),
        effect=neutral("activations are kept, unless --recompute-granularity says otherwise"),
    )

    multi_latent_attention: bool = flag(
        False,
        "Multi-head latent attention.",
        deprecated=("--multi-head-latent-attention",),
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
    mla_mm_split: bool = flag(
        False,
        "Split the up-projections into four products.",
        effect=neutral("the up-projections stay whole; the numbers are the same"),
    )
    mla_zero_memory: bool = flag(
        False,
        "Compute the up-projections again in the backward pass "
        "(--recompute-granularity selective --recompute-modules mla_up_proj).",
        effect=LATENT,
    )
    mla_swap_core_attn_out: bool = flag(
        False,
        "Move the attention's output to the host until the backward pass.",
        effect=neutral("it stays on the device"),
    )
