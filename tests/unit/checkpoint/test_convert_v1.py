"""``convert_ckpt.py``: the older command line gives what the newer one gives, or says why not."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.command_v1 import main
from tests.unit.checkpoint.tiny import QUICK, assert_same, rank_files, to_hf, to_mg, weights

ROOT = Path(__file__).parents[3]

SEED = """
    --use-mcore-models --model-type GPT --load-model-type hf --save-model-type mg
    --target-tensor-parallel-size 1 --target-pipeline-parallel-size 4 --add-qkv-bias
    --load-dir {load} --save-dir {save} --tokenizer-model {load}/tokenizer.json
    --model-type-hf llama2 --params-dtype bf16
"""
"""The command of the Qwen2.5 quick start, with other paths."""
EXPORT = """
    --use-mcore-models --model-type GPT --model-type-hf llama2 --load-model-type mg
    --save-model-type hf --target-tensor-parallel-size 1 --target-pipeline-parallel-size 1
    --load-dir {load} --save-dir {save}
"""


def run(command: str, *more: str, **folders: Path) -> None:
    main([*shlex.split(command.format(**folders)), *QUICK, *more])


def assert_same_files(one: Path, other: Path) -> None:
    """Two Megatron checkpoints with the same rank files and the same bits."""
    before, after = rank_files(one), rank_files(other)
    assert before.keys() == after.keys()
    for rank, content in before.items():
        assert_same(content["model"], after[rank]["model"])


def test_the_quick_start_command(tiny_hf, scratch, capsys) -> None:
    """Qwen2 under its older name, "llama2 with biases"; PP4 and a cast."""
    load, save = tiny_hf("qwen2"), scratch / "mg"
    run(SEED, load=load, save=save)
    assert f"without effect: --tokenizer-model {load}/tokenizer.json (" in capsys.readouterr().out
    assert [*rank_files(save)] == [f"mp_rank_00_{stage:03d}" for stage in range(4)]
    newer = to_mg(load, scratch / "newer", "--params-dtype", "bf16", pp=4)
    assert_same_files(save, newer)
    back = weights(to_hf(save, scratch / "hf"))
    assert_same({n: t.to(torch.bfloat16) for n, t in weights(load).items()}, back)


@pytest.mark.soak
def test_the_quick_start_command_as_a_program(tiny_hf, scratch) -> None:
    """With the comparison of logits that a small model gets."""
    words = shlex.split(SEED.format(load=tiny_hf("qwen2"), save=scratch / "mg"))
    command = [sys.executable, str(ROOT / "convert_ckpt.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
    assert done.returncode == 0, done.stderr
    assert "✓ logits" in done.stdout


def test_layer_list_and_export_beside_the_original(tiny_hf, own_hf, scratch) -> None:
    """The older tool wrote an export into ``mg2hf`` of the folder of the original model."""
    original = own_hf("llama")
    flags = "--loader hf_mcore --saver mg_mcore --model-type-hf llama2 --num-layer-list 1,3"
    main(
        [
            *("--load-dir", str(original), "--save-dir", str(scratch / "mg"), *QUICK),
            *("--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", "2"),
            *flags.split(),
        ]
    )
    run(EXPORT, load=scratch / "mg", save=original)
    assert_same(weights(tiny_hf("llama")), weights(original / "mg2hf"))
    config = (original / "config.json").read_bytes()
    assert (original / "mg2hf/config.json").read_bytes() == config


def test_export_elsewhere(tiny_hf, scratch) -> None:
    load = to_mg(tiny_hf("llama"), scratch / "mg", tp=2)
    run(EXPORT, load=load, save=scratch / "hf")
    assert_same(weights(tiny_hf("llama")), weights(scratch / "hf"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--w-pack", "--w-pack needs Baichuan models"),
        ("--embed-layernorm", "BLOOM"),
        ("--add-dense-bias", "models with such biases"),
        ("--save-to-legacy", "before Megatron-Core"),
        ("--model-type BERT", "BERT models"),
        ("--no-checking", "conversion without checks"),
        ("--ckpt-cfg-path my.json", "a family file in mindspeed_llm/models/"),
        ("--load-model-type optim", "mg to mg reshards the optimizer's state too"),
        ("--loader mg_mcore --load-model-type hf", "--loader mg_mcore reads mg and .* is hf"),
        ("--loader keras", "--loader keras is unknown"),
        ("--params-dtyp bf16", "did you mean --params-dtype"),
        ("--post-norm", "--post-norm: llama .* does not normalise outputs"),
        ("--true-vocab-size 100", "--true-vocab-size 100: llama .* has 131 rows"),
        ("--model-type-hf qwen3", "--model-type-hf qwen3 means"),
        (
            "--target-expert-model-parallel-size 2 --target-expert-parallel-size 4",
            "are one thing",
        ),
    ],
)
def test_refused_by_name(flags, message, tiny_hf, scratch) -> None:
    load, save = tiny_hf("llama"), scratch / "mg"
    with pytest.raises(UserError, match=message):
        main(["--load-dir", str(load), "--save-dir", str(save), *QUICK, *flags.split()])
    assert not save.exists()


def test_biases_that_the_model_does_not_have(tiny_hf, scratch) -> None:
    with pytest.raises(UserError, match="--model-type-hf qwen2 means the family qwen2"):
        run(SEED, load=tiny_hf("llama"), save=scratch / "mg")


def test_what_has_no_effect_is_said(tiny_hf, scratch, capsys) -> None:
    flags = "--megatron-path /x --max-queue-size 9 --load-hf-from-config --vocab-file v.json"
    run(SEED, *flags.split(), load=tiny_hf("qwen2"), save=scratch / "mg")
    out = capsys.readouterr().out
    for name in ("--megatron-path", "--max-queue-size", "--load-hf-from-config", "--vocab-file"):
        assert f"without effect: {name}" in out
    assert "without effect: --use-mcore-models" not in out
