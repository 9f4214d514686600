"""Published files of DeepSeek-V2, V3 and GLM-4.5: every key counts, sizes add up, flags agree."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import parse
from mindspeed_llm.models import latent, mtp
from mindspeed_llm.models.megatron_flags import from_flags
from mindspeed_llm.models.registry import family_of_hf_config, family_of_shape, get_family
from mindspeed_llm.models.rope_scaling import Yarn
from mindspeed_llm.models.shape import ModelShape

_YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
_COMMON = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "ep_size": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_layer_freq": 1,
    "pretraining_tp": 1,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "seq_aux": True,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
}
_V2: dict[str, Any] = {
    **_COMMON,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "rope_scaling": _YARN,
    "scoring_func": "softmax",
    "vocab_size": 102400,
}
_GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0",
    "use_cache": True,
    "vocab_size": 151552,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "deepseek2-lite": {
        **_V2,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "topk_method": "greedy",
    },
    "deepseek2": {
        **_V2,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_group": 8,
        "n_routed_experts": 160,
        "num_attention_heads": 128,
        "num_hidden_layers": 60,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "routed_scaling_factor": 16.0,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
    },
    "deepseek3": {
        **_COMMON,
        "architectures": ["DeepseekV3ForCausalLM"],
        "first_k_dense_replace": 3,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "vocab_size": 129280,
    },
    "glm45-air": {
        **_GLM,
        "first_k_dense_replace": 1,
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 128,
        "num_hidden_layers": 46,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": False,
    },
    "glm45": {
        **_GLM,
        "first_k_dense_replace": 3,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "num_hidden_layers": 92,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
    },
}
# Billions of weights as the models' cards and reports state them, and those of the layers of
# multi-token prediction besides the tables that they share.
BILLIONS = {
    "deepseek2-lite": (15.7, 0),
    "deepseek2": (236, 0),
    "deepseek3": (671, 11.5),
    "glm45-air": (106, None),
    "glm45": (355, None),
}


def shape_of(name: str, **changes: Any) -> ModelShape:
    return get_family(name).config.to_shape({**PUBLISHED[name], **changes})


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_of_the_published_file_is_known(name) -> None:
    family = family_of_hf_config(PUBLISHED[name])
    assert family is get_family(name)
    assert family.config.unknown_keys(PUBLISHED[name]) == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_fresh_file_says_the_same(name) -> None:
    family, shape = get_family(name), shape_of(name)
    assert family.config.to_shape(family.hf_config(shape, "bfloat16")) == shape
    assert family_of_shape(shape) is family


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_weights_are_the_published_ones(name) -> None:
    family, shape = get_family(name), shape_of(name)
    main, further = BILLIONS[name]
    own = family.num_parameters(mtp.without(shape))
    assert own / 1e9 == pytest.approx(main, rel=0.01)
    if further is not None:
        assert (family.num_parameters(shape) - own) / 1e9 == pytest.approx(further, rel=0.02)


def test_names_on_disk_of_deepseek3() -> None:
    """Names and sizes of the published files, layer 61 of multi-token prediction included."""
    family, shape = get_family("deepseek3"), shape_of("deepseek3")
    sizes: dict[str, tuple[int, ...]] = {}
    for entry in family.weights(shape).expand(shape):
        sizes |= entry.hf_shapes(shape)
    attention, mlp, experts = 9, 3, 2 + 3 * 256 + 3
    assert len(sizes) == 3 + 62 * attention + 3 * mlp + 59 * experts + 6
    expected = {
        "model.layers.60.self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
        "model.layers.60.self_attn.kv_b_proj.weight": (32768, 512),
        "model.layers.60.self_attn.q_b_proj.weight": (24576, 1536),
        "model.layers.60.mlp.gate.e_score_correction_bias": (256,),
        "model.layers.61.eh_proj.weight": (7168, 14336),
        "model.layers.61.embed_tokens.weight": (129280, 7168),
        "model.layers.61.shared_head.head.weight": (129280, 7168),
        "model.layers.61.shared_head.norm.weight": (7168,),
        "model.layers.61.mlp.experts.255.down_proj.weight": (7168, 2048),
        "model.layers.61.mlp.shared_experts.up_proj.weight": (2048, 7168),
    }
    assert {name: sizes.get(name) for name in expected} == expected
    assert "model.layers.2.mlp.experts.0.up_proj.weight" not in sizes


REFUSED = [
    ("deepseek3", {"rope_interleave": False}, "rope_interleave is False"),
    ("deepseek3", {"attention_bias": True}, "attention_bias is True"),
    ("deepseek3", {"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
    ("deepseek3", {"topk_method": "greedy"}, "topk_method is 'greedy'"),
    ("deepseek3", {"norm_topk_prob": False}, "norm_topk_prob is False"),
    ("deepseek3", {"moe_layer_freq": 2}, "moe_layer_freq is 2"),
    ("deepseek3", {"quantization_config": {"quant_method": "fp8"}}, "dequantise"),
    (
        "deepseek3",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "'linear' is not implemented",
    ),
    ("deepseek2", {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'"),
    ("deepseek2", {"norm_topk_prob": True}, "norm_topk_prob is True"),
    ("deepseek2", {"mlp_bias": True}, "mlp_bias is True"),
    ("glm45", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("glm45", {"rope_scaling": _YARN}, "'yarn' is not implemented"),
]


@pytest.mark.parametrize(("name", "changes", "message"), REFUSED)
def test_settings_that_are_not_implemented_stop(name, changes, message) -> None:
    with pytest.raises(UserError, match=message):
        shape_of(name, **changes)


def test_numbers_of_groups_mean_nothing_without_them() -> None:
    lite, experts = shape_of("deepseek2-lite"), shape_of("deepseek2").experts
    assert lite.experts is not None and experts is not None
    assert lite.experts.moe_router_num_groups is lite.experts.moe_router_group_topk is None
    assert (experts.moe_router_num_groups, experts.moe_router_group_topk) == (8, 3)
    assert get_family("deepseek2").hf_config(shape_of("deepseek2"), "bfloat16")["n_group"] == 8
    glm = shape_of("glm45").experts
    assert glm is not None and glm.moe_router_num_groups is None


DEEPSEEK3_FLAGS = """
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
    --vocab-size 129280 --max-position-embeddings 163840 --norm-epsilon 1e-6
    --untie-embeddings-and-output-weights --qk-layernorm --normalization RMSNorm --swiglu
    --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-nope-head-dim 128
    --qk-rope-head-dim 64 --v-head-dim 128 --rope-scaling-type yarn --rope-scaling-factor 40
    --rope-scaling-mscale 1.0 --rope-scaling-mscale-all-dim 1.0
    --rope-scaling-original-max-position-embeddings 4096 --beta-fast 32 --beta-slow 1
    --num-experts 256 --moe-router-topk 8 --moe-intermediate-size 2048 --n-shared-experts 1
    --first-k-dense-replace 3 --moe-layer-freq 1 --moe-router-num-groups 8
    --moe-router-group-topk 4 --moe-router-topk-scaling-factor 2.5 --norm-topk-prob
    --moe-router-score-function sigmoid --moe-router-enable-expert-bias --mtp-num-layers 1
    --mla-mm-split --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec
    --mock-data --tokenizer-type NullTokenizer --seq-length 4096 --micro-batch-size 1
    --global-batch-size 1 --train-iters 1 --lr 1e-5
"""


def test_flags_alone_mean_the_model_of_the_published_file() -> None:
    config = parse("pretrain", DEEPSEEK3_FLAGS.split())
    shape = from_flags({**vars(config.model), **vars(config.moe)})
    assert shape == shape_of("deepseek3")
    assert family_of_shape(shape) is get_family("deepseek3")


def test_megatron_gets_the_factor_that_a_file_states() -> None:
    """Megatron computes the factor of cosine and sine; one that is stated must come out."""

    def concentration(mscale: float) -> float:
        return 0.1 * mscale * math.log(40) + 1

    for stated, all_dim in ((None, 0.707), (None, None), (1.3, None), (0.9, 1.0)):
        scaling = Yarn(
            40.0, 4096, mscale=0.707, mscale_all_dim=all_dim, given_attention_factor=stated
        )
        shape = dataclasses.replace(shape_of("deepseek2"), rope_scaling=scaling)
        fields = latent.config_fields(shape)
        found = concentration(fields["mscale"]) / concentration(fields["mscale_all_dim"])
        assert found == pytest.approx(scaling.attention_factor, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"qk_layernorm": False}, "--qk-layernorm"), ({"num_query_groups": 8}, "num_query_groups 8")],
)
def test_latent_attention_of_another_form_is_refused(changes, message) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(shape_of("deepseek3"), **changes)
