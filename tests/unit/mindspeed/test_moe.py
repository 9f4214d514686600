"""Routing against the routers of ``transformers``, and what the router keeps."""

from __future__ import annotations

import pytest
import torch

from mindspeed.moe.routing import RoutingRule, route

TOKENS, EXPERTS, TOPK = 200, 16, 4


def qwen(normalize: bool):
    from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    return Qwen3MoeTopKRouter(
        Qwen3MoeConfig(
            hidden_size=32,
            num_experts=EXPERTS,
            num_experts_per_tok=TOPK,
            norm_topk_prob=normalize,
        )
    )


def deepseek2(method: str):
    from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    return DeepseekV2TopkRouter(
        DeepseekV2Config(
            hidden_size=32,
            n_routed_experts=EXPERTS,
            num_experts_per_tok=TOPK,
            routed_scaling_factor=16.0,
            topk_method=method,
            n_group=4,
            topk_group=2,
        )
    )


def deepseek3(normalize: bool):
    from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    return DeepseekV3TopkRouter(
        DeepseekV3Config(
            hidden_size=32,
            n_routed_experts=EXPERTS,
            num_experts_per_tok=TOPK,
            routed_scaling_factor=2.5,
            norm_topk_prob=normalize,
            n_group=4,
            topk_group=2,
        )
    )


GROUPS = {"num_groups": 4, "group_topk": 2}
CASES = {
    "softmax among the chosen": (lambda: qwen(True), RoutingRule(TOPK)),
    "softmax among all": (lambda: qwen(False), RoutingRule(TOPK, normalize=False)),
    "scaled": (
        lambda: deepseek2("greedy"),
        RoutingRule(TOPK, normalize=False, scaling_factor=16.0),
    ),
    "groups by their best": (
        lambda: deepseek2("group_limited_greedy"),
        RoutingRule(TOPK, normalize=False, scaling_factor=16.0, **GROUPS),
    ),
    "groups by their best two, bias": (
        lambda: deepseek3(True),
        RoutingRule(TOPK, "sigmoid", scaling_factor=2.5, group_score_topk=2, **GROUPS),
    ),
    "sigmoid as it is": (
        lambda: deepseek3(False),
        RoutingRule(
            TOPK, "sigmoid", normalize=False, scaling_factor=2.5, group_score_topk=2, **GROUPS
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_same_experts_and_weights_as_transformers(case):
    make, rule = CASES[case]
    router = make()
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, 32)
    with torch.no_grad():
        router.weight.copy_(torch.randn(EXPERTS, 32))
        bias = getattr(router, "e_score_correction_bias", None)
        if bias is not None:
            bias.copy_(torch.randn(EXPERTS))
        outputs = router(hidden)
        logits, weights, chosen = outputs[0], outputs[-2], outputs[-1]
        assert logits.shape == (TOKENS, EXPERTS)
        ours, routing_map = route(logits, rule, bias)
    assert (routing_map.sum(1) == TOPK).all()
    assert (torch.zeros_like(routing_map).scatter(1, chosen, True) == routing_map).all()
    torch.testing.assert_close(ours.gather(1, chosen), weights, rtol=1e-6, atol=1e-7)
    assert (ours[~routing_map] == 0).all()


def test_megatrons_own_groups_choose_other_experts():
    """Why the rule has a field for it: Megatron scores a group by topk // group_topk experts."""
    from megatron.core.transformer.moe.moe_utils import topk_routing_with_score_function

    torch.manual_seed(0)
    logits = torch.randn(TOKENS, EXPERTS)
    rule = RoutingRule(TOPK, normalize=False, **GROUPS)
    megatron = {"use_pre_softmax": True, **GROUPS}
    _, theirs = topk_routing_with_score_function(logits, TOPK, **megatron)
    assert (route(logits, rule)[1] != theirs).any()
    rule = RoutingRule(TOPK, normalize=False, group_score_topk=2, **GROUPS)
    weights, ours = route(logits, rule)
    expected, theirs = topk_routing_with_score_function(logits, TOPK, **megatron)
    assert (ours == theirs).all()
    torch.testing.assert_close(weights, expected)


def test_gradient_reaches_the_logits_of_chosen_experts_only():
    torch.manual_seed(0)
    logits = torch.randn(5, EXPERTS, dtype=torch.float64, requires_grad=True)
    weights, routing_map = route(logits, RoutingRule(TOPK))
    (weights * torch.randn_like(weights)).sum().backward()
    assert ((logits.grad.abs() > 1e-12) == routing_map).all()
