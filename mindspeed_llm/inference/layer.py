"""A transformer layer's weights, ready for decoding, with the products and norms made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mindspeed.transformer.norm import RMSNorm

if TYPE_CHECKING:
    from mindspeed_llm.models.gpt import GPTModel

# Up to how many rows a norm counts operations rather than numbers.
_FEW_ROWS = 8


@dataclass(frozen=True)
class Heads:
    """Attention heads of one rank: groups of ``queries`` query heads and one key/value head."""

    groups: int
    queries: int
    size: int


class LayerWeights:
    """One Megatron ``TransformerLayer``, taken apart.

    Attributes:
        heads: of this rank.
        sharers: ranks that hold the same key/value group, each with its share of the queries.
        inner_size: columns of the MLP's inner states on this rank (gate and up together).
        softmax_scale: factor of the attention scores.
    """

    def __init__(self, layer: Any, tp_group: torch.distributed.ProcessGroup) -> None:
        config, attention, mlp = layer.config, layer.self_attention, layer.mlp
        self._tp = tp_group
        self.input_norm = norm_function(layer.input_layernorm)
        self.mlp_norm = norm_function(layer.pre_mlp_layernorm)
        self.query_norm = norm_function(attention.q_layernorm) if config.qk_layernorm else None
        self.key_norm = norm_function(attention.k_layernorm)
        self.qkv = Linear(attention.linear_qkv)
        self.proj = Linear(attention.linear_proj, tp_group)
        self.fc1 = Linear(mlp.linear_fc1)
        self.fc2 = Linear(mlp.linear_fc2, tp_group)
        self._gated, self._activation = config.gated_linear_unit, config.activation_func
        self.inner_size = mlp.linear_fc1.weight.shape[0]
        size = attention.hidden_size_per_attention_head
        self.softmax_scale = config.softmax_scale or size**-0.5
        # Fewer groups than ranks: each rank has the group of its position and a share of its
        # query heads (Megatron's rule).
        self.sharers = max(1, tp_group.size() // config.num_query_groups)
        groups = attention.num_query_groups_per_partition
        queries = attention.num_attention_heads_per_partition // groups // self.sharers
        self.heads = Heads(groups, queries, size)

    def normalise_heads(self, grouped: Tensor) -> None:
        """Apply the query and key norms, if there are any, to ``[..., queries + 2, d]``."""
        if self.query_norm is not None:
            query, key = grouped[..., :-2, :], grouped[..., -2, :]
            query.copy_(self.query_norm(query))
            key.copy_(self.key_norm(key))

    def own_share(self, mixed: Tensor) -> Tensor:
        """This rank's query heads with the key and value of the group it shares with others."""
        parts = [torch.empty_like(mixed) for _ in range(self._tp.size())]
        torch.distributed.all_gather(parts, mixed, group=self._tp)
        own = self._tp.rank() % self.sharers
        first = self._tp.rank() - own
        group = torch.cat(parts[first : first + self.sharers], dim=-1)
        group = group.view(len(mixed), -1, self.heads.size)
        query = group[:, own * self.heads.queries :][:, : self.heads.queries]
        return torch.cat((query, group[:, -2:]), dim=1).view(len(mixed), -1)

    def activate(self, wide: Tensor) -> Tensor:
        """The MLP's activation of ``[..., inner]``, gate first where there is one."""
        if not self._gated:
            return self._activation(wide)
        gate, up = wide.chunk(2, dim=-1)
        return self._activation(gate).mul_(up)


class Linear:
    """A column-parallel linear layer, or with ``tp_group`` a row-parallel one that sums."""

    def __init__(self, module: Any, tp_group: torch.distributed.ProcessGroup | None = None) -> None:
        self._weight, self._columns = module.weight, module.weight.t()
        self._bias = module.bias
        self._group = tp_group if tp_group is not None and tp_group.size() > 1 else None

    def __call__(self, inputs: Tensor) -> Tensor:
        """``[n, in]`` to ``[n, out]``."""
        return self.write(inputs, inputs.new_empty(len(inputs), len(self._weight)))

    def write(self, inputs: Tensor, out: Tensor) -> Tensor:
        """The same into ``out``."""
        if self._bias is None:
            return torch.mm(inputs, self._columns, out=out)
        return torch.addmm(self._bias, inputs, self._columns, out=out)

    def write_one(self, inputs: Tensor, factor: float, out: Tensor) -> None:
        """The same for ``factor`` times one token ``[in]``, into ``[out]``."""
        if self._bias is None:
            torch.addmv(out, self._weight, inputs, beta=0, alpha=factor, out=out)
        else:
            torch.addmv(self._bias, self._weight, inputs, alpha=factor, out=out)

    def add_to(self, residual: Tensor, inputs: Tensor) -> None:
        """Add the layer's output, summed over the ranks, to ``residual [n, out]``."""
        if self._group is None:
            residual.addmm_(inputs, self._columns)
        else:
            self._add_sum(residual, torch.mm(inputs, self._columns))
        if self._bias is not None:
            residual += self._bias

    def add_one(self, residual: Tensor, inputs: Tensor) -> None:
        """The same for one token: ``[out]`` and ``[in]``."""
        if self._group is None:
            residual.addmv_(self._weight, inputs)
        else:
            self._add_sum(residual, torch.mv(self._weight, inputs))
        if self._bias is not None:
            residual += self._bias

    def _add_sum(self, residual: Tensor, part: Tensor) -> None:
        torch.distributed.all_reduce(part, group=self._group)
        residual += part


def lay_out_for_decoding(model: GPTModel) -> None:
    """Store each matrix the way in which one token reads it fastest on a CPU.

    By columns if it has more rows than columns (the product of the MLP's first layer takes 15%
    less time so), else by rows as it is (the second layer's takes 25% less than by columns).

    Only where they are laid out changes, not what they are; training goes on with them, but
    their storage is no longer part of any buffer that they were views of.
    """
    if next(model.parameters()).device.type != "cpu":
        return
    # Not the embedding table, whose rows are looked up one by one.
    for module in model.decoder.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.nn.Parameter) or weight.dim() != 2:
            continue
        if weight.shape[0] > weight.shape[1]:
            weight.data = weight.data.t().contiguous().t()


def norm_function(module: Any) -> RMSNormForm | Any:
    """A norm module as a function; an RMSNorm as the form below."""
    return RMSNormForm(module) if isinstance(module, RMSNorm) else module


class RMSNormForm:
    """An RMSNorm made for a few rows and no gradient."""

    def __init__(self, module: RMSNorm) -> None:
        self._weight = weight = module.scale()
        self._eps, self._mean_of = module.eps, 1 / weight.numel()
        self._epsilon = weight.new_full((1, 1, 1), module.eps)

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., h]``, normalised."""
        weight = self._weight
        if x.dtype != torch.float32 or x.dim() != 2 or len(x) > _FEW_ROWS:
            return F.rms_norm(x, weight.shape, weight, self._eps)
        # The mean square of a row as a product with itself: fewer operations.
        square = torch.baddbmm(self._epsilon, x.unsqueeze(1), x.unsqueeze(2), alpha=self._mean_of)
        return torch.mul(x, square.rsqrt_()[..., 0]).mul_(weight)

    def write_one(self, x: Tensor, out: Tensor) -> float:
        """Write ``x * weight`` of one fp32 row ``[h]`` to ``out``; return the factor it lacks.

        A product that comes next multiplies by it at no cost.
        """
        torch.mul(x, self._weight, out=out)
        return (torch.dot(x, x).item() * self._mean_of + self._eps) ** -0.5
