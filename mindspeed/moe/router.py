"""Megatron's router with the routing rules of the published models."""

from __future__ import annotations

from collections.abc import Callable

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.moe_utils import compute_routing_scores_for_aux_loss
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from mindspeed.moe.routing import RoutingRule, route


def routing_rule(config: TransformerConfig) -> RoutingRule:
    """The rule that a config asks for.

    Megatron has no fields for two of its parts; they are read where somebody has set them:
    ``moe_norm_topk_prob`` and ``moe_router_group_score_topk``.
    """
    topk, group_topk = config.moe_router_topk, config.moe_router_group_topk
    sigmoid = config.moe_router_score_function == "sigmoid"
    # Megatron normalises all but softmax scores over all experts, and sigmoid scores of one.
    normalize = topk > 1 if sigmoid else not config.moe_router_pre_softmax
    return RoutingRule(
        topk=topk,
        score_function=config.moe_router_score_function,
        normalize=getattr(config, "moe_norm_topk_prob", normalize),
        scaling_factor=config.moe_router_topk_scaling_factor or 1.0,
        num_groups=config.moe_router_num_groups,
        group_topk=group_topk,
        group_score_topk=getattr(
            config, "moe_router_group_score_topk", topk // group_topk if group_topk else 1
        ),
    )


class Router(TopKRouter):
    """Chooses by :func:`mindspeed.moe.routing.route`; balance losses and bias are Megatron's.

    Raises:
        ValueError: the config asks for something that this class does not do.
    """

    def __init__(
        self, config: TransformerConfig, pg_collection: ProcessGroupCollection | None = None
    ) -> None:
        super().__init__(config=config, pg_collection=pg_collection)
        unsupported = {
            "moe_router_load_balancing_type 'sinkhorn'": self.routing_type == "sinkhorn",
            "moe_expert_capacity_factor": config.moe_expert_capacity_factor is not None,
            "moe_router_fusion": config.moe_router_fusion,
            "moe_enable_routing_replay": config.moe_enable_routing_replay,
        }
        for name, wanted in unsupported.items():
            if wanted:
                raise ValueError(f"{name} is not supported by this router")
        self.rule = routing_rule(config)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Router:
        """Moves and casts, but leaves buffers, the bias and the counts behind it, in fp32.

        Counts stop growing and steps of the bias are lost in 16 bits. Megatron casts the bias back,
        which does not restore what a model that is cast has loaded, and the counts not at all.
        """
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            setattr(self, name, buffer.to(getattr(self, name).device))
        return self

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits ``[s, b, experts]`` to weights and choice, both ``[s · b, experts]``.

        Args:
            padding_mask: ``[s, b]``, True for a token that does not count.
        """
        length, batch = logits.shape[:2]
        logits = logits.flatten(0, 1)
        if padding_mask is not None:
            padding_mask = padding_mask.flatten()
        logits = self.apply_z_loss(logits, padding_mask=padding_mask)
        weights, routing_map = route(logits, self.rule, self.expert_bias)
        if self.training and torch.is_grad_enabled() and self.is_aux_loss_enabled():
            best, scores = compute_routing_scores_for_aux_loss(
                logits, self.topk, self.score_function, padding_mask=padding_mask
            )
            masked = padding_mask is not None
            weights = self._apply_aux_loss(weights, scores, best, with_padding_mask=masked)
            weights = self._apply_seq_aux_loss(
                weights, scores, best, length, batch, with_padding_mask=masked
            )
            weights = self._apply_global_aux_loss(weights, scores, best, with_padding_mask=masked)
        self._apply_expert_bias(routing_map, padding_mask=padding_mask)
        return weights, routing_map
