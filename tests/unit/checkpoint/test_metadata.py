"""What a checkpoint says of itself, written and read; Megatron-LM's own args are understood."""

from __future__ import annotations

import argparse
import json

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.metadata import CheckpointLayout, checkpoint_args, read_metadata
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.registry import FAMILIES, get_family
from mindspeed_llm.models.shape import ModelShape, RopeScaling

SHAPE = ModelShape(
    num_layers=8,
    hidden_size=64,
    ffn_hidden_size=96,
    num_attention_heads=8,
    num_query_groups=2,
    kv_channels=16,
    vocab_size=131,
    max_position_embeddings=128,
    norm_epsilon=1e-6,
    rotary_base=5e5,
    rope_scaling=RopeScaling(32.0, 1.0, 4.0, 8192),
)
PIPELINES = {
    "PP1": PipelineLayout.build(8),
    "PP4": PipelineLayout.build(8, 4),
    "PP2 VPP2": PipelineLayout.build(8, 2, 2),
    "uneven": PipelineLayout.build(8, 3, None, (3, 3, 2)),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_written_args_read_back(family, name) -> None:
    layout = CheckpointLayout(2, PIPELINES[name], 132)
    args = checkpoint_args(family, SHAPE, layout, "bf16")
    assert read_metadata(args) == (family, SHAPE, layout)
    json.dumps(vars(args))  # plain values: no class of ours is needed to read them


def megatron_args(**changes) -> argparse.Namespace:
    values = {
        "num_layers": 8,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_attention_heads": 8,
        "max_position_embeddings": 128,
        "padded_vocab_size": 256,
        "normalization": "RMSNorm",
        "swiglu": True,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
    }
    return argparse.Namespace(**{**values, **changes})


def test_megatron_args_without_our_names() -> None:
    family, shape, layout = read_metadata(megatron_args(), vocab_size=131)
    assert family.name == "llama"
    assert (shape.num_query_groups, shape.kv_channels, shape.vocab_size) == (8, 8, 131)
    assert (layout.tensor_parallel, layout.padded_vocab_size) == (2, 256)
    assert read_metadata(megatron_args())[1].vocab_size == 256, "all that is known"


def test_megatron_ways_of_grouping_heads() -> None:
    grouped = megatron_args(group_query_attention=True, num_query_groups=2)
    assert read_metadata(grouped)[1].num_query_groups == 2
    # Megatron keeps a default count of 1 beside a switch that is off.
    off = megatron_args(group_query_attention=False, num_query_groups=1)
    assert read_metadata(off)[1].num_query_groups == 8


def test_family_follows_from_the_structure() -> None:
    assert read_metadata(megatron_args(qk_layernorm=True))[0] is get_family("qwen3")
    assert read_metadata(megatron_args(add_qkv_bias=True))[0] is get_family("qwen2")


@pytest.mark.parametrize(
    "changes, stages",
    [
        ({"virtual_pipeline_model_parallel_size": 2}, [[(0, 1), (4, 5)], [(2, 3), (6, 7)]]),
        ({"num_layers_per_virtual_pipeline_stage": 4}, [[(0, 1, 2, 3)], [(4, 5, 6, 7)]]),
        ({"decoder_first_pipeline_num_layers": 3}, [[(0, 1, 2)], [(3, 4, 5, 6, 7)]]),
        ({"decoder_last_pipeline_num_layers": 3}, [[(0, 1, 2, 3, 4)], [(5, 6, 7)]]),
        ({"num_layer_list": "5,3"}, [[(0, 1, 2, 3, 4)], [(5, 6, 7)]]),
    ],
)
def test_megatron_ways_of_dividing_layers(changes, stages) -> None:
    layout = read_metadata(megatron_args(**changes))[2]
    assert [list(stage) for stage in layout.pipeline.stages] == stages


def test_megatron_llama3_scaling() -> None:
    shape = read_metadata(megatron_args(use_rope_scaling=True, rope_scaling_factor=8.0))[1]
    assert shape.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"normalization": "LayerNorm"}, "normalization='LayerNorm'"),
        ({"swiglu": False}, "swiglu=False"),
        ({"position_embedding_type": "learned_absolute"}, "learned_absolute"),
        ({"add_bias_linear": True}, "add_bias_linear=True"),
        ({"multi_latent_attention": True}, "no kv_lora_rank"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"model_type_hf": "qwen3-next"}, "not supported yet; missing: "),
        ({"vocab_size": 300}, "300 .* 256"),
    ],
)
def test_other_models_are_refused(changes, message) -> None:
    with pytest.raises(UserError, match=message):
        read_metadata(megatron_args(**changes))
