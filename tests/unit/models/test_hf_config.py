"""config.json to shape and back, in both spellings; what would change the numbers is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.models.megatron_flags import from_flags, to_flags
from mindspeed_llm.models.registry import FAMILIES, family_of_hf_config, get_family, names
from mindspeed_llm.models.shape import ModelShape, RopeScaling
from tests.families import CONFIGS, tiny_config

BASE = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(name: str, **changes):
    return get_family(name).config.to_shape({**BASE, **changes})


def test_both_spellings_of_rotary_settings() -> None:
    four = read("llama", rope_theta=500000.0, rope_scaling=LLAMA3)
    five = read("llama", rope_parameters={**LLAMA3, "rope_theta": 500000.0})
    assert four == five
    assert four.rotary_base == 500000.0
    assert four.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    plain = read("llama", rope_theta=1e6, rope_scaling=None)
    assert plain == read("llama", rope_parameters={"rope_type": "default", "rope_theta": 1e6})


@pytest.mark.parametrize(
    "given, expected", [({}, 8), ({"head_dim": None}, 8), ({"head_dim": 16}, 16)]
)
def test_conv_09_head_size_given_absent_or_null(given, expected) -> None:
    """CONV-09: an explicit head size wins; absent or null it is hidden / heads."""
    for name in ("llama", "qwen2"):
        assert read(name, **given).kv_channels == expected


def test_conv_09_qwen3_has_a_default_head_size_of_its_own() -> None:
    """CONV-09: Qwen3's Hugging Face class takes 128 when the file is silent."""
    assert read("qwen3").kv_channels == 128
    assert read("qwen3", head_dim=16).kv_channels == 16


def test_key_value_heads_absent_or_null_are_the_query_heads() -> None:
    without = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert get_family("llama").config.to_shape(without).num_query_groups == 8
    assert read("llama", num_key_value_heads=None).num_query_groups == 8


@pytest.mark.parametrize("name", CONFIGS)
def test_a_written_config_reads_as_the_same_shape(name) -> None:
    family, shape = shape_of(name)
    config = family.hf_config(shape, "bfloat16")
    assert family_of_hf_config(config) is family
    assert family.config.to_shape(config) == shape
    assert not family.config.unknown_keys(config)


def shape_of(name):
    """Family and shape of a tiny model, from the ``config.json`` that ``transformers`` writes."""
    config = tiny_config(name)
    family = next(f for f in FAMILIES if f.hf_model_type == config.model_type)
    stored = {**config.to_dict(), "architectures": [family.hf_architecture]}
    assert family_of_hf_config(stored) is family
    assert not family.config.unknown_keys(stored)
    return family, family.config.to_shape(stored)


def test_every_family_is_in_the_table() -> None:
    assert {shape_of(name)[0].name for name in CONFIGS} == {family.name for family in FAMILIES}


def test_every_name_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", CONFIGS)
def test_shape_survives_as_flags_and_as_json(name) -> None:
    """What a checkpoint stores of a model, in both forms."""
    _, shape = shape_of(name)
    assert ModelShape.from_dict(json.loads(json.dumps(shape.to_dict()))) == shape
    assert from_flags(to_flags(shape)) == shape


def test_llama3_scaling_survives_writing() -> None:
    shape = read("llama", rope_scaling=LLAMA3)
    assert (
        get_family("llama").config.to_shape(get_family("llama").hf_config(shape, "float32"))
        == shape
    )


REFUSED = [
    ("llama", {"attention_bias": True}, "attention_bias is True"),
    ("llama", {"mlp_bias": True}, "mlp_bias is True"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; implemented: 'silu'"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear' is not implemented"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks 'low_freq_factor'"),
    ("qwen2", {"rope_scaling": LLAMA3}, "'llama3' is not implemented"),
    ("qwen2", {"use_sliding_window": True}, "use_sliding_window is True"),
    ("qwen3", {"attention_bias": True}, "attention_bias is True"),
    ("qwen3", {"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
    ("gemma2", {"layer_types": ["full_attention"] * 2}, "layer_types is full_attention"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
    ("phi3.5", {"rope_scaling": {"type": "su", "factor": 4.0}}, "lacks 'short_factor'"),
    ("glm4", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn' is not implemented"),
    ("qwen3", {"quantization_config": {"bits": 4}}, "quantization_config is set"),
    ("llama", {"num_hidden_layers": None, "vocab_size": None}, "num_hidden_layers is missing"),
    ("llama", {"num_key_value_heads": 3}, "8 is not a multiple of num_query_groups 3"),
]


@pytest.mark.parametrize("name, changes, message", REFUSED)
def test_refused_configs(name, changes, message) -> None:
    with pytest.raises(UserError, match=message):
        read(name, **changes)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "no family for Mamba"),
        ({}, "neither architectures nor model_type"),
    ],
)
def test_unknown_architectures(config, message) -> None:
    with pytest.raises(UserError, match=message):
        family_of_hf_config(config)


def test_unknown_family_names_suggest() -> None:
    with pytest.raises(UserError, match="did you mean qwen3"):
        get_family("qwen33")
    with pytest.raises(UserError, match="not supported yet; missing: "):
        get_family("mamba2")


def test_the_skeleton_of_an_unknown_architecture_is_a_family_file(tmp_path) -> None:
    """What the message prints works as it stands for a model of Llama's structure."""
    config = {
        **BASE,
        "architectures": ["NewForCausalLM"],
        "model_type": "new_model",
        "head_dim": 16,
        "mlp_bias": False,
    }
    with pytest.raises(UserError) as error:
        family_of_hf_config(config)
    text = str(error.value).split("\n\n", 1)[1]
    space: dict = {}
    exec(compile(text, "new_model.py", "exec"), space)
    family = space["NEW_MODEL"]
    assert (family.name, family.hf_architecture) == ("new-model", "NewForCausalLM")
    assert family.config.to_shape(config).kv_channels == 16
    assert not family.config.unknown_keys(config)
    with pytest.raises(UserError, match="mlp_bias is True"):
        family.config.to_shape({**config, "mlp_bias": True})
