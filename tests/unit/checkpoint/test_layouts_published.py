"""Published configs at published layouts: name and size of every tensor of every rank file.

Nothing is loaded: the tensors exist as names and sizes. What is expected is written out here by
hand, from the sizes in the configs alone.
"""

from __future__ import annotations

import json
from collections import Counter
from math import prod
from pathlib import Path

import pytest

from mindspeed_llm.checkpoint.metadata import CheckpointLayout, ExpertLayout
from mindspeed_llm.checkpoint.placement import held_tensors
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.registry import family_of_hf_config

CONFIGS = json.loads(
    (Path(__file__).parents[2] / "data" / "published_configs.json").read_text(encoding="utf-8")
)
Sizes = dict[str, tuple[int, ...]]


def rank_files(name: str, tp: int, pipeline: tuple, vocab: int, experts=None) -> dict[str, Sizes]:
    """Folder name -> ``chunk/name`` -> size."""
    config = CONFIGS[name]
    family = family_of_hf_config(config, "config.json")
    shape = family.config.to_shape(config, "config.json")
    pipeline_layout = PipelineLayout.build(shape.num_layers, *pipeline)
    layout = CheckpointLayout(tp, pipeline_layout, vocab, experts)
    return {
        layout.rank_folder(at, stage): {
            f"{key}/{held.name}": held.dims(shape)
            for chunk, key in enumerate(pipeline_layout.chunk_keys())
            for held in held_tensors(
                family, shape, pipeline_layout, stage, chunk, at, layout.grouped
            )
        }
        for stage in range(pipeline_layout.pipeline_parallel)
        for at in layout.ranks(shape)
    }


def in_layers(layers, sizes: Sizes, key: str = "model") -> Sizes:
    return {
        f"{key}/decoder.layers.{layer}.{name}": size
        for layer in layers
        for name, size in sizes.items()
    }


def test_glm4_32b() -> None:
    """61 layers as 15,15,15,16; half of 2 key/value heads and of 48 heads on each of two ranks."""
    files = rank_files("GLM-4-32B-0414", 2, (4, None, (15, 15, 15, 16)), 151552)
    layer: Sizes = {
        "input_layernorm.weight": (6144,),
        "post_attn_norm.weight": (6144,),
        "pre_mlp_layernorm.weight": (6144,),
        "post_mlp_layernorm.weight": (6144,),
        "self_attention.linear_qkv.weight": ((24 + 1 + 1) * 128, 6144),
        "self_attention.linear_proj.weight": (6144, 24 * 128),
        "mlp.linear_fc1.weight": (23040, 6144),
        "mlp.linear_fc2.weight": (6144, 11520),
    }
    table = {"model/embedding.word_embeddings.weight": (75776, 6144)}
    end = {
        "model/decoder.final_layernorm.weight": (6144,),
        "model/output_layer.weight": (75776, 6144),
    }
    expected = {}
    for rank in ("00", "01"):
        for stage, count in enumerate((15, 15, 15, 16)):
            ends = (table if stage == 0 else {}) | (end if stage == 3 else {})
            expected[f"mp_rank_{rank}_{stage:03d}"] = in_layers(range(count), layer) | ends
    assert files == expected


def test_qwen3_8b() -> None:
    files = rank_files("Qwen3-8B", 8, (), 151936)
    layer: Sizes = {
        "input_layernorm.weight": (4096,),
        "pre_mlp_layernorm.weight": (4096,),
        "self_attention.linear_qkv.weight": ((4 + 1 + 1) * 128, 4096),
        "self_attention.linear_proj.weight": (4096, 512),
        "self_attention.q_layernorm.weight": (128,),
        "self_attention.k_layernorm.weight": (128,),
        "mlp.linear_fc1.weight": (3072, 4096),
        "mlp.linear_fc2.weight": (4096, 1536),
    }
    ends = {
        "model/embedding.word_embeddings.weight": (18992, 4096),
        "model/decoder.final_layernorm.weight": (4096,),
        "model/output_layer.weight": (18992, 4096),
    }
    one = in_layers(range(36), layer) | ends
    assert files == {f"mp_rank_{rank:02d}": one for rank in range(8)}


def test_qwen3_235b_a22b() -> None:
    """The published script: PP4 with chunks of 8 layers, EP32, no-op layers 94 and 95."""
    experts = ExpertLayout(32, 1, grouped=True)
    files = rank_files("Qwen3-235B-A22B", 1, (4, 8, None, (94, 95)), 151936, experts)
    layer: Sizes = {
        "input_layernorm.weight": (4096,),
        "pre_mlp_layernorm.weight": (4096,),
        "self_attention.linear_qkv.weight": ((64 + 4 + 4) * 128, 4096),
        "self_attention.linear_proj.weight": (4096, 8192),
        "self_attention.q_layernorm.weight": (128,),
        "self_attention.k_layernorm.weight": (128,),
        "mlp.router.weight": (128, 4096),
        # Four experts a rank.
        "mlp.experts.weight1": (4096, 4 * 3072),
        "mlp.experts.weight2": (4 * 1536, 4096),
    }
    expected = {}
    for stage in range(4):
        sizes: Sizes = {}
        for chunk in range(3):
            last = stage == 3 and chunk == 2
            sizes |= in_layers(range(6 if last else 8), layer, f"model{chunk}")
        if stage == 0:
            sizes["model0/embedding.word_embeddings.weight"] = (151936, 4096)
        if stage == 3:
            sizes["model2/decoder.final_layernorm.weight"] = (4096,)
            sizes["model2/output_layer.weight"] = (151936, 4096)
        expected |= {f"mp_rank_00_{stage:03d}_{ep:03d}": sizes for ep in range(32)}
    assert files == expected


@pytest.mark.parametrize("noop", [(61, 62, 63), (47, 62, 63)])
def test_deepseek_v3(noop) -> None:
    """TP2 PP8 EP32 with whole experts, chunks of 2 layers, three no-op layers, one MTP layer."""
    experts = ExpertLayout(32, 1)
    files = rank_files("DeepSeek-V3", 2, (8, 2, None, noop), 129280, experts)
    assert len(files) == 8 * 32
    attention: Sizes = {
        "input_layernorm.weight": (7168,),
        "pre_mlp_layernorm.weight": (7168,),
        "self_attention.linear_proj.weight": (7168, 128 * 128 // 2),
        "self_attention.linear_q_up_proj.weight": (128 * 192 // 2, 1536),
        "self_attention.linear_kv_up_proj.weight": (128 * 256 // 2, 512),
    }
    experts_of_layer: Sizes = {
        "mlp.router.weight": (256, 7168),
        "mlp.router.expert_bias": (256,),
        "mlp.shared_experts.linear_fc1.weight": (2048, 7168),
        "mlp.shared_experts.linear_fc2.weight": (7168, 1024),
        **{
            f"mlp.experts.local_experts.{i}.linear_fc{n}.weight": size
            for i in range(8)
            for n, size in ((1, (4096, 7168)), (2, (7168, 2048)))
        },
    }
    first = files["mp_rank_00_000_000"]
    dense: Sizes = {
        "mlp.linear_fc1.weight": (18432, 7168),
        "mlp.linear_fc2.weight": (7168, 9216),
    }
    for layers, sizes, key in (
        ((0, 1), attention | dense, "model0"),
        ((0, 1), attention | experts_of_layer, "model1"),
    ):
        wanted = in_layers(layers, sizes, key)
        assert {name: first.get(name) for name in wanted} == wanted
    # The whole model is there: each dense part twice over tensor ranks, each expert once.
    parameters = Counter()
    for folder, sizes in files.items():
        tensor, expert = folder.split("_")[2], folder.split("_")[4]
        for name, size in sizes.items():
            if ".local_experts." in name:
                parameters["experts"] += prod(size)
            elif (tensor, expert) in (("00", "000"), ("01", "001")) and "fc" in name:
                parameters["other MLPs"] += prod(size)
    # 58 layers with experts, and the one of multi-token prediction.
    assert parameters["experts"] == 59 * 256 * 3 * 2048 * 7168
    assert parameters["other MLPs"] == 59 * 3 * 2048 * 7168 + 3 * 3 * 18432 * 7168
