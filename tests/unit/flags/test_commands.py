"""The command lines of the documents: accepted, each with its meaning."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import Config, parse, validate
from mindspeed_llm.model_source import resolve_model
from mindspeed_llm.models.registry import get_family

from .commands import COMMANDS, GLM4_9B_PRETRAIN, QWEN3_8B_GENERATE, QWEN3_8B_PRETRAIN


def words(command: str) -> list[str]:
    return shlex.split(command)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_is_accepted_and_survives_storing(name):
    tool, command = COMMANDS[name]
    config = parse(tool, words(command))
    given = {word for word in words(command) if word.startswith("--")}
    assert len(config.given) == len(given)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_glm4_script_has_the_meant_values():
    config = parse("pretrain", words(GLM4_9B_PRETRAIN))
    model, training, optimizer = config.model, config.training, config.optimizer
    assert model.spec == ("mindspeed_llm.tasks.models.spec.gemma2_spec", "layer_spec")
    assert (model.add_bias_linear, model.add_qkv_bias, model.swiglu) == (False, True, True)
    assert (model.num_query_groups, model.rotary_percent, model.norm_epsilon) == (2, 0.5, 1e-5)
    assert model.untie_embeddings_and_output_weights
    assert config.params_dtype == "bf16" and training.accumulate_allreduce_grads_in_fp32
    assert (optimizer.lr, optimizer.min_lr, optimizer.weight_decay) == (1.25e-6, 1.25e-7, 0.1)
    assert config.data.data_path == ("./dataset/alpaca_text_document",)
    assert config.data.handler_name == "GeneralPretrainHandler"
    assert not config.ops.apply_rope_fusion and not config.ops.bias_swiglu_fusion
    assert (training.eval_iters, config.checkpoint.ckpt_format) == (0, "torch")
    derived = validate(config, world_size=8)
    assert (derived.data_parallel_size, derived.num_microbatches) == (1, 64)


# The published config.json of GLM-4-9B-0414.
GLM4_9B_CONFIG = {
    "architectures": ["Glm4ForCausalLM"],
    "model_type": "glm4",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-05,
    "vocab_size": 151552,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


def test_glm4_flags_alone_mean_the_model_of_its_config():
    config = parse("pretrain", words(GLM4_9B_PRETRAIN))
    model = resolve_model(config, load=None)
    published = get_family("glm4_9b").config.to_shape(GLM4_9B_CONFIG)
    assert model.family is get_family("glm4_9b")
    assert model.shape == dataclasses.replace(published, max_position_embeddings=8192)


def test_qwen3_script_reports_what_has_no_effect_here():
    config = parse("pretrain", words(QWEN3_8B_PRETRAIN))
    inactive = "\n".join(config.inactive_flags("cpu"))
    for name in ("--reuse-fp32-param", "--use-ascend-coc", "--workers 4", "--initial-loss-scale"):
        assert name in inactive
    for name in ("--use-flash-attn", "--no-masked-softmax-fusion", "--lr", "--overlap-grad"):
        assert name not in inactive
    derived = validate(config, world_size=8)
    assert (derived.data_parallel_size, derived.num_microbatches) == (4, 16)


def test_generation_takes_a_training_script_and_says_what_is_idle():
    config = parse("inference", words(QWEN3_8B_PRETRAIN))
    inactive = config.inactive_flags("cpu")
    assert "--lr 1.25e-06 (no effect in inference)" in inactive
    assert not any(line.startswith(("--bf16", "--load ", "--seq-length")) for line in inactive)


def test_tokenizer_not_use_fast_asks_for_the_slow_one():
    config = parse("inference", words(QWEN3_8B_GENERATE))
    assert config.tokenizer.tokenizer_not_use_fast


def test_help_needs_no_heavy_import():
    code = (
        "import sys\n"
        "from mindspeed_llm.flags import parse\n"
        "try: parse('pretrain', ['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'megatron', 'transformers', 'numpy', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "--tensor-model-parallel-size" in run.stdout
    assert "Known, but refused" in run.stdout


def test_config_is_frozen():
    config = parse("pretrain", words(QWEN3_8B_PRETRAIN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model.num_layers = 3  # type: ignore[misc]
    assert config.replace(num_layers=3).model.num_layers == 3
    assert config.model.num_layers == 36


def test_from_dict_forgets_flags_that_no_longer_exist():
    config = parse("pretrain", words(QWEN3_8B_PRETRAIN))
    stored = config.to_dict()
    stored["model"]["a_flag_of_the_past"] = 1
    stored["given"].append("a_flag_of_the_past")
    assert Config.from_dict(stored) == config
    with pytest.raises(UserError, match="no known tool"):
        Config.from_dict({})
