"""Multi-head latent attention (arXiv:2405.04434) on Megatron's base class.

Without TransformerEngine, Megatron's own class cuts the down-projections over the tensor-parallel
ranks, and then leaves out the sum of the gradients of the key's rotated part, which the heads of
all ranks share. Here each rank holds the down-projections whole, as with TransformerEngine, and
that part of the key passes through a region that sums.
"""

from __future__ import annotations

from functools import partial

import torch
from megatron.core.models.common.embeddings import apply_rotary_pos_emb
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.multi_latent_attention import (
    MLASelfAttentionSubmodules,
    MultiLatentAttention,
)
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch import Tensor, nn

from mindspeed.device import get_device
from mindspeed.transformer.packed import PackedRows


class ReplicatedLinear(nn.Module):
    """A linear layer without bias that every tensor-parallel rank holds whole.

    With sequence parallelism a rank sees its share of the tokens only; the weight is marked, so
    that Megatron sums its gradient over the ranks.
    """

    def __init__(self, input_size: int, output_size: int, config: TransformerConfig) -> None:
        super().__init__()
        device = "cpu" if config.use_cpu_initialization else get_device().torch_device()
        self.weight = nn.Parameter(
            torch.empty(output_size, input_size, dtype=config.params_dtype, device=device)
        )
        if config.perform_initialization:
            config.init_method(self.weight)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """The product, and Megatron's place for a bias."""
        return nn.functional.linear(x, self.weight), None


class LatentSelfAttention(MultiLatentAttention):
    """Self-attention over low-rank keys, values and (with ``q_lora_rank``) queries.

    Shapes below: s tokens, b sequences, n heads of this rank, and s' = s / tp with sequence
    parallelism, else s.

    Raises:
        ValueError: the input comes with a key/value cache, or is packed in another way than
            :class:`~mindspeed.transformer.packed.PackedRows`.
    """

    def __init__(
        self,
        config: MLATransformerConfig,
        submodules: MLASelfAttentionSubmodules,
        layer_number: int,
        attn_mask_type: AttnMaskType = AttnMaskType.causal,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        if pg_collection is None:
            pg_collection = ProcessGroupCollection.use_mpu_process_groups()
        super().__init__(
            config=config,
            submodules=submodules,
            layer_number=layer_number,
            attn_mask_type=attn_mask_type,
            attention_type="self",
            cp_comm_type=cp_comm_type,
            pg_collection=pg_collection,
        )
        heads, hidden, rank = config.num_attention_heads, config.hidden_size, config.q_lora_rank
        queries = heads * self.q_head_dim
        if rank is None:
            self.linear_q_proj = self._column(submodules.linear_q_proj, hidden, queries)
        else:
            self.linear_q_down_proj = build_module(
                submodules.linear_q_down_proj, hidden, rank, config=config
            )
            self.q_layernorm = self._norm(submodules.q_layernorm, rank)
            self.linear_q_up_proj = self._column(submodules.linear_q_up_proj, rank, queries)
        rank = config.kv_lora_rank
        self.linear_kv_down_proj = build_module(
            submodules.linear_kv_down_proj,
            hidden,
            rank + config.qk_pos_emb_head_dim,
            config=config,
        )
        self.kv_layernorm = self._norm(submodules.kv_layernorm, rank)
        self.linear_kv_up_proj = self._column(
            submodules.linear_kv_up_proj, rank, heads * (config.qk_head_dim + config.v_head_dim)
        )

    def _column(self, spec: ModuleSpec | type, rows: int, columns: int) -> nn.Module:
        return build_module(
            spec,
            rows,
            columns,
            config=self.config,
            init_method=self.config.init_method,
            gather_output=False,
            bias=False,
            skip_bias_add=False,
            is_expert=False,
            tp_group=self.tp_group,
        )

    def _norm(self, spec: ModuleSpec | type, size: int) -> nn.Module:
        # A spec may bring its own epsilon, which need not be that of the other norms.
        given = spec.params if isinstance(spec, ModuleSpec) else {}
        eps = {} if "eps" in given else {"eps": self.config.layernorm_epsilon}
        return build_module(spec, config=self.config, hidden_size=size, **eps)

    def get_query_key_value_tensors(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        position_ids: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
        inference_context: object | None = None,
        **unused: object,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """``[s', b, h]`` to query and key ``[s, b, n, qk]``, value ``[s, b, n, v]``, both latents.

        The signature is that of Megatron's class.
        """
        if inference_context is not None:
            raise ValueError("latent attention takes no key/value cache here")
        if packed_seq_params is not None and not isinstance(packed_seq_params, PackedRows):
            raise ValueError("latent attention takes packed sequences as PackedRows only")
        config = self.config
        query_latent = hidden_states
        if config.q_lora_rank is not None:
            query_latent, _ = self.linear_q_down_proj(hidden_states)
            query_latent = self.q_layernorm(query_latent)
        down, _ = self.linear_kv_down_proj(hidden_states)
        latent, rotated = down.split([config.kv_lora_rank, config.qk_pos_emb_head_dim], dim=-1)
        latent, rotated = self.kv_layernorm(latent), self._shared_by_ranks(rotated)
        heads = partial(
            self._heads, angles_and_factor=self._angles(hidden_states, packed_seq_params)
        )
        if self.recompute_up_proj:
            # The base class throws the output away and has it computed again in the backward pass.
            # (None, not False, is what keeps it from asking TransformerEngine for fp8.)
            self.qkv_up_checkpoint = CheckpointWithoutOutput(fp8=None)
            made = self.qkv_up_checkpoint.checkpoint(heads, query_latent, latent, rotated)
        else:
            made = heads(query_latent, latent, rotated)
        return *made, query_latent, latent

    def _shared_by_ranks(self, rotated: Tensor) -> Tensor:
        """``[s', b, d]`` to ``[s, b, d]``, whose gradient is summed over the ranks' heads."""
        if self.config.sequence_parallel:
            return gather_from_sequence_parallel_region(rotated, group=self.tp_group)
        return copy_to_tensor_model_parallel_region(rotated, group=self.tp_group)

    def _angles(self, hidden_states: Tensor, packed: PackedRows | None) -> tuple[Tensor, float]:
        """Rotary angles ``[s, 1 or b, 1, d]``, and the factor of cosine and sine."""
        rotary, yarn = self.rotary_pos_emb, self.config.rope_type == "yarn"
        length = rotary.get_rotary_seq_len(None, None, hidden_states, self.config, packed)
        found, factor = rotary(length) if yarn else (rotary(length), 1.0)
        return found if packed is None else packed.angles(lambda _: found), factor

    def _heads(
        self,
        query_latent: Tensor,
        latent: Tensor,
        rotated: Tensor,
        angles_and_factor: tuple[Tensor, float],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Latents ``[s', b, rank]`` and the key's rotated part ``[s, b, d]`` to q, k and v."""
        config, heads = self.config, self.num_attention_heads_per_partition
        angles, factor = angles_and_factor
        up = self.linear_q_proj if config.q_lora_rank is None else self.linear_q_up_proj
        query = up(query_latent)[0].unflatten(-1, (heads, self.q_head_dim))
        plain, turned = query.split([config.qk_head_dim, config.qk_pos_emb_head_dim], dim=-1)
        both = self.linear_kv_up_proj(latent)[0]
        both = both.unflatten(-1, (heads, config.qk_head_dim + config.v_head_dim))
        key, value = both.split([config.qk_head_dim, config.v_head_dim], dim=-1)

        # Megatron turns neighbouring channels here (and leaves each pair's halves apart), as
        # the models do.
        def rotate(x: Tensor) -> Tensor:
            group = self.pg_collection.cp
            return apply_rotary_pos_emb(x, angles, config, mscale=factor, cp_group=group)

        shared = rotate(rotated.unsqueeze(2)).expand(-1, -1, heads, -1)
        query = torch.cat([plain, rotate(turned)], dim=-1)
        return query, torch.cat([key, shared], dim=-1), value.contiguous()
