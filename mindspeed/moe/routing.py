"""Which experts a token visits, and with which weights: a pure function of the router's logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RoutingRule:
    """How experts are chosen and weighted.

    Attributes:
        topk: experts per token.
        score_function: ``softmax`` over all experts, or ``sigmoid`` of each logit.
        normalize: whether the chosen experts' scores are divided by their sum.
        scaling_factor: of the weights.
        num_groups, group_topk: experts lie in equal groups, of which a token may use some.
        group_score_topk: how many of a group's best scores are summed to the group's own: 1 in
            DeepSeek-V2 (arXiv:2405.04434), 2 in DeepSeek-V3 (arXiv:2412.19437).
    """

    topk: int
    score_function: str = "softmax"
    normalize: bool = True
    scaling_factor: float = 1.0
    num_groups: int | None = None
    group_topk: int | None = None
    group_score_topk: int = 1


def route(logits: Tensor, rule: RoutingRule, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights ``[tokens, experts]``, zero where not chosen, and the choice as booleans.

    Scores are at least fp32 whatever the type of the logits; the weights have that type.

    Args:
        logits: ``[tokens, experts]``.
        bias: ``[experts]``, added to the scores for the choice only.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = wide.softmax(-1) if rule.score_function == "softmax" else wide.sigmoid()
    preference = scores if bias is None else scores + bias
    if rule.group_topk:
        preference = _within_best_groups(preference.detach(), rule)
    chosen = preference.topk(rule.topk, dim=-1).indices
    weights = scores.gather(1, chosen)
    if rule.normalize:
        # The small number only matters where all scores underflow.
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    weights = (weights * rule.scaling_factor).to(logits.dtype)
    routing_map = torch.zeros_like(logits, dtype=torch.bool).scatter(1, chosen, True)
    return torch.zeros_like(logits).scatter(1, chosen, weights), routing_map


def _within_best_groups(preference: Tensor, rule: RoutingRule) -> Tensor:
    """The same ``[tokens, experts]``, minus infinity outside each token's best groups."""
    assert rule.num_groups is not None and rule.group_topk is not None
    grouped = preference.unflatten(1, (rule.num_groups, -1))
    group_scores = grouped.topk(rule.group_score_topk, dim=-1).values.sum(dim=-1)
    best = group_scores.topk(rule.group_topk, dim=-1).indices
    allowed = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, best, True)
    return grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).flatten(1)
