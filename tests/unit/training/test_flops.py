"""Operations per step against what torch counts in the forward pass of ``transformers``."""

from __future__ import annotations

import pytest

from mindspeed_llm.models.registry import get_family
from mindspeed_llm.training.flops import training_flops
from tests.families import tiny_config

LENGTH = 32


@pytest.mark.parametrize(
    ("row", "family"),
    [
        ("llama", "llama"),
        ("qwen3-moe-dense", "qwen3-moe"),
        ("qwen2-moe", "qwen2-moe"),
        ("deepseek2", "deepseek2"),
        ("deepseek2-lite", "deepseek2"),
    ],
)
def test_equals_what_torch_counts(row, family):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    config = tiny_config(row, attn_implementation="eager", experts_implementation="eager")
    model = AutoModelForCausalLM.from_config(config)
    shape = get_family(family).config.to_shape(config.to_dict())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.arange(LENGTH)[None])
    # Eager attention computes the whole score matrix, we count the lower half.
    latent = shape.latent
    channels = (
        2 * shape.query_size
        if latent is None
        else shape.num_attention_heads * (latent.query_channels + latent.v_head_dim)
    )
    upper_half = shape.num_layers * channels * LENGTH**2
    # transformers turns positions into angles by a small matrix product.
    angles = 2 * LENGTH * shape.kv_channels
    counted = counter.get_total_flops() - upper_half
    assert counted - angles <= training_flops(shape, 1, LENGTH) / 3 <= counted
