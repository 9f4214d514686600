"""Adapters and flags that would give wrong weights: each is named, nothing is written."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.command import main
from tests.families import write_tiny_hf
from tests.unit.checkpoint import adapters
from tests.unit.checkpoint.tiny import QUICK, to_hf, to_mg, weights
from tests.unit.flags.commands import COMMANDS

pytest.importorskip("peft")


REFUSED_FLAGS = [
    ("--lora-r 8", r"--lora-r 8, but the adapter has rank 6"),
    ("--lora-alpha 16", r"--lora-alpha 16, but the adapter has alpha 11"),
    ("--lora-target-modules linear_qkv", r"linear_qkv, but the adapter is for linear_fc1 linear_f"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED_FLAGS)
@pytest.mark.parametrize("kind", ["peft", "megatron"])
def test_contradicting_flags_are_refused(flags, message, kind, tiny_lora, scratch) -> None:
    base, adapter = tiny_lora("llama")
    if kind == "megatron":
        given = ("--lora-load", str(adapter), "--save-lora-to-mg")
        adapter = to_mg(base, scratch / "adapter", *given, tp=2)
    with pytest.raises(UserError, match=message):
        to_mg(base, scratch / "mg", "--lora-load", str(adapter), *flags.split())
    assert not (scratch / "mg").exists()


def published(load: Path, lora: Path, save: Path, config: Path) -> list[str]:
    """The published command that merges an adapter of Qwen3, with other paths."""
    tool, command = COMMANDS["qwen3 lora mcore2hf"]
    assert tool == "convert"
    folders = {
        "./model_weights/qwen3_mcore/": load,
        "./ckpt/qwen3_lora": lora,
        "--save-dir ./model_from_hf/qwen3_hf/": f"--save-dir {save}",
        "--hf-cfg-dir ./model_from_hf/qwen3_hf/": f"--hf-cfg-dir {config}",
    }
    for old, new in folders.items():
        command = command.replace(old, str(new))
    return [*shlex.split(command), *QUICK]


def test_the_published_command_with_an_adapter_of_the_published_training(tiny_lora, scratch):
    """Trained with rank 16 and alpha 32, merged with 8 and 16: refused; with the same: merged."""
    base, _ = tiny_lora("qwen3")
    mg = to_mg(base, scratch / "mg", pp=2)
    peft = adapters.make(base, scratch / "peft", rank=16, lora_alpha=32)
    lora = to_mg(base, scratch / "lora", "--lora-load", str(peft), "--save-lora-to-mg", tp=2)
    command = published(mg, lora, scratch / "hf", base)
    with pytest.raises(UserError) as error:
        main(command)
    assert "--lora-r 8, but the adapter has rank 16" in str(error.value)
    assert "--lora-alpha 16, but the adapter has alpha 32" in str(error.value)
    assert not (scratch / "hf").exists()
    main([*command, "--lora-r", "16", "--lora-alpha", "32"])
    adapters.assert_close(weights(scratch / "hf"), adapters.merged_by_peft(base, peft))


def test_agreeing_flags_are_accepted(tiny_lora, scratch) -> None:
    base, adapter = tiny_lora("llama")
    flags = "--lora-r 6 --lora-alpha 11 --lora-target-modules"
    targets = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    to_mg(base, scratch / "mg", "--lora-load", str(adapter), *flags.split(), *targets)


@pytest.mark.parametrize("flags", ["--lora-r 8", "--lora-alpha 3", "--lora-target-modules x"])
def test_flags_without_any_adapter_are_refused(flags, tiny_lora, scratch) -> None:
    with pytest.raises(UserError, match=r"there is no adapter"):
        to_mg(tiny_lora("llama")[0], scratch / "mg", *flags.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "trained biases"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"peft_type": "IA3"}, "this is a IA3 adapter"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base weights"),
        ({"fan_in_fan_out": True}, "transposed"),
        ({"use_new_idea": True}, "an option that is not known here"),
        ({"r": 7}, "expected .* by adapter_config.json"),
        ({"target_modules": ["q_proj", "lm_head"]}, "names lm_head, but no pair is for it"),
    ],
)
def test_other_kinds_of_adapters_are_refused(change, message, tiny_lora, scratch) -> None:
    base, adapter = tiny_lora("llama")
    own = Path(shutil.copytree(adapter, scratch / "own"))
    config = json.loads((own / "adapter_config.json").read_text())
    (own / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UserError, match=message):
        to_mg(base, scratch / "mg", "--lora-load", str(own))


@pytest.mark.parametrize(
    ("drop", "add", "message"),
    [
        ("model.layers.2.mlp.up_proj", None, "layers.2.mlp.up_proj has no pair, other layers"),
        ("model.layers.2.mlp.up_proj.lora_A", None, "the other half of .*up_proj.lora_B"),
        (None, "base_model.model.lm_head.weight", "not LoRA pairs of linear layers"),
        (None, "base_model.model.model.embed_tokens.lora_embedding_A", "not LoRA pairs"),
    ],
)
def test_incomplete_and_foreign_tensors_are_named(drop, add, message, tiny_lora, scratch) -> None:
    from safetensors.torch import load_file, save_file

    base, adapter = tiny_lora("llama")
    own = Path(shutil.copytree(adapter, scratch / "own"))
    file = own / "adapter_model.safetensors"
    kept = {name: t for name, t in load_file(file).items() if drop is None or drop not in name}
    save_file({**kept, **({add: torch.zeros(2, 2)} if add else {})}, file)
    with pytest.raises(UserError, match=message):
        to_mg(base, scratch / "mg", "--lora-load", str(own))


def test_an_adapter_for_another_model_is_refused(tiny_lora, scratch) -> None:
    llama, phi = tiny_lora("llama"), tiny_lora("phi3.5")
    with pytest.raises(UserError, match=r"the model has no linear layer .*qkv_proj"):
        to_mg(llama[0], scratch / "mg", "--lora-load", str(phi[1]))
    write_tiny_hf(scratch / "wide", "llama", intermediate_size=128)
    with pytest.raises(UserError, match=r"gate_proj.lora_B.* has size \[96, 6\], expected \[128"):
        to_mg(scratch / "wide", scratch / "mg", "--lora-load", str(llama[1]))
    given = ("--lora-load", str(llama[1]), "--save-lora-to-mg")
    pairs = to_mg(llama[0], scratch / "pairs", *given)
    with pytest.raises(UserError, match=r"ffn_hidden_size: adapter 96, model 128"):
        to_mg(scratch / "wide", scratch / "mg", "--lora-load", str(pairs))
    with pytest.raises(UserError, match="without the weights that it belongs to"):
        to_hf(pairs, scratch / "hf")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--save-lora-to-mg --params-dtype bf16", "--params-dtype: for weights only"),
        ("--save-lora-to-mg --ckpt-format torch_dist", "for weights only"),
        ("--save-lora-to-mg --save-lora-to-hf", "exclude each other"),
        ("--save-lora-to-mg --save-model-type hf", "--save-model-type hf contradict each other"),
        ("--save-lora-to-hf", "is a PEFT adapter already"),
        ("--save-lora-to-hf --target-tensor-parallel-size 2", "for hf to mg only"),
    ],
)
def test_requests_for_an_adapter_alone(flags, message, tiny_lora, scratch) -> None:
    base, adapter = tiny_lora("llama")
    folders = ["--load-dir", str(base), "--lora-load", str(adapter), "--save-dir"]
    with pytest.raises(UserError, match=message):
        main([*folders, str(scratch / "out"), *flags.split()])
    assert not (scratch / "out").exists()
