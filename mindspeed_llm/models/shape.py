"""The numbers that define an architecture, under the names of Megatron's flags."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mindspeed.errors import UserError
from mindspeed_llm.models import rope_scaling
from mindspeed_llm.models.rope_scaling import RopeScaling, Scaling

__all__ = ["Experts", "LatentAttention", "ModelShape", "RopeScaling"]


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (arXiv:2405.04434): low-rank keys, values and maybe queries.

    Attributes:
        q_lora_rank: rank of the queries; None if they are projected at full rank.
        kv_lora_rank: rank that keys and values share.
        qk_head_dim: channels of a query or key head without rotation.
        qk_pos_emb_head_dim: rotated channels; all heads share those of the key.
        v_head_dim: channels of a value head.
    """

    kv_lora_rank: int
    qk_head_dim: int
    qk_pos_emb_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None

    @property
    def query_channels(self) -> int:
        """Channels of a query head."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of the MLP.

    Attributes:
        num_experts: routed experts.
        moe_router_topk: experts per token.
        moe_ffn_hidden_size: width of one expert.
        moe_shared_expert_intermediate_size: width of the expert that every token visits.
        shared_expert_gate: whether that one's output is scaled by a gate.
        first_k_dense_replace: leading layers with an MLP.
        moe_router_score_function: ``softmax`` or ``sigmoid`` of the router's logits.
        norm_topk_prob: whether the chosen experts' scores are divided by their sum.
        moe_router_topk_scaling_factor: factor of the routing weights.
        moe_router_enable_expert_bias: whether a bias takes part in the choice, not in the weight.
        moe_router_num_groups, moe_router_group_topk: experts lie in groups, of which a token may
            use some.
        group_score_topk: how many of a group's best scores make the group's own.
    """

    num_experts: int
    moe_router_topk: int
    moe_ffn_hidden_size: int
    moe_shared_expert_intermediate_size: int | None = None
    shared_expert_gate: bool = False
    first_k_dense_replace: int = 0
    moe_router_score_function: str = "softmax"
    norm_topk_prob: bool = True
    moe_router_topk_scaling_factor: float = 1.0
    moe_router_enable_expert_bias: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    group_score_topk: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.moe_router_topk <= self.num_experts:
            raise UserError(
                f"moe_router_topk {self.moe_router_topk} must lie between 1 and the number of "
                f"experts, {self.num_experts}"
            )
        groups = self.moe_router_num_groups
        if groups and self.num_experts % groups:
            raise UserError(
                f"num_experts {self.num_experts} is not a multiple of the number of groups {groups}"
            )


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with RMSNorm, rotary positions and a gated MLP or experts.

    ``vocab_size`` is the true number of rows of the embedding table as Hugging Face stores it;
    padding for tensor parallelism is a matter of layout (:func:`padded_vocab_size`).

    Attributes:
        add_rmsnorm_offset: norms scale by 1 + weight.
        post_norm: the outputs of attention and MLP are normalised too.
        use_glm_rope: rotation turns neighbouring channels instead of the two halves.
        activation: of the gated MLP: ``silu`` or ``gelu_tanh``.
        embedding_multiplier_scale: factor of the embedding's output.
        query_pre_attn_scalar: scores are divided by its root instead of the head size's.
        attn_logit_softcapping, output_logit_softcapping: x becomes cap · tanh(x / cap).
        sliding_window: how many tokens back attention sees, itself included.
        interleave_sliding_window: only the first, third, ... layer has the window.
        mtp_num_layers: layers that predict tokens further ahead.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    rotary_percent: float = 1.0
    rope_scaling: Scaling | None = None
    untie_embeddings_and_output_weights: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    add_rmsnorm_offset: bool = False
    post_norm: bool = False
    use_glm_rope: bool = False
    activation: str = "silu"
    embedding_multiplier_scale: float = 1.0
    query_pre_attn_scalar: float | None = None
    attn_logit_softcapping: float | None = None
    output_logit_softcapping: float | None = None
    sliding_window: int | None = None
    interleave_sliding_window: bool = False
    mtp_num_layers: int = 0
    latent: LatentAttention | None = None
    experts: Experts | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_attention_heads % self.num_query_groups:
            raise UserError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_query_groups {self.num_query_groups}"
            )
        if self.latent is None:
            return
        if self.num_query_groups != self.num_attention_heads:
            raise UserError(
                f"num_query_groups {self.num_query_groups}: heads of multi-head latent attention "
                "do not share keys and values; leave it out"
            )
        if not self.qk_layernorm:
            raise UserError(
                "multi-head latent attention without norms of its latents is not implemented: give "
                "--qk-layernorm"
            )

    @property
    def tied(self) -> bool:
        """Whether the output layer shares the input embedding's weight."""
        return not self.untie_embeddings_and_output_weights

    @property
    def query_size(self) -> int:
        """Rows of the query projection: heads x head size (not always hidden_size)."""
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_size(self) -> int:
        """Rows of the key (or value) projection."""
        return self.num_query_groups * self.kv_channels

    def is_dense(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has an MLP instead of experts."""
        return self.experts is None or layer < self.experts.first_k_dense_replace

    def to_dict(self) -> dict:
        """JSON-safe form, as stored in checkpoints."""
        values = dataclasses.asdict(self)
        values["rope_scaling"] = rope_scaling.to_dict(self.rope_scaling)
        return values

    @classmethod
    def from_dict(cls, values: dict) -> ModelShape:
        """The inverse of :meth:`to_dict`."""
        values = dict(values)
        values["rope_scaling"] = rope_scaling.from_dict(values.get("rope_scaling"))
        for name, part in (("latent", LatentAttention), ("experts", Experts)):
            if values.get(name):
                values[name] = part(**values[name])
        return cls(**values)


def padded_vocab_size(vocab_size: int, tensor_parallel: int, divisible_by: int = 1) -> int:
    """Rows of the embedding table once it divides over TP (Megatron's rule).

    The table is padded to a multiple of ``divisible_by * tensor_parallel``.
    """
    multiple = divisible_by * tensor_parallel
    return (vocab_size + multiple - 1) // multiple * multiple


def padded_query_groups(shape: ModelShape, tensor_parallel: int) -> int:
    """Key/value heads of a layout: the model's, or more where heads do not divide over TP.

    Megatron needs query heads that divide over the tensor-parallel ranks, and key/value heads
    that divide or are divided. Elsewhere whole groups of zero heads are added, which leaves the
    model as it is (:class:`mindspeed_llm.models.splits.Heads`).
    """
    heads, groups = shape.num_attention_heads, shape.num_query_groups
    fits = groups % tensor_parallel == 0 or tensor_parallel % groups == 0
    if heads % tensor_parallel == 0 and fits:
        return groups
    return padded_vocab_size(groups, tensor_parallel)
