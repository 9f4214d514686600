"""Commands of tuning that cannot be meant: each refused, with what to do instead."""

from __future__ import annotations

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import parse

BASE = "--data-path chats --train-iters 4 --lr 1e-3 --seq-length 32"
LOAD = "--load model"
SFT = f"--stage sft --is-instruction-dataset {LOAD}"
DPO = f"--stage dpo --is-pairwise-dataset {LOAD}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (LOAD, r"--stage is required: sft .* or dpo"),
        (f"{LOAD} --stage rlhf", r"--stage: 'rlhf' is not one of sft, dpo"),
        (f"{LOAD} --stage ray_ppo", "--stage ray_ppo needs reinforcement learning"),
        (f"{LOAD} --stage ray_grpo", "--stage ray_grpo needs reinforcement learning"),
        (f"{LOAD} --stage ray_online_dpo", "--stage ray_online_dpo needs reinforcement learning"),
        ("--stage sft --is-instruction-dataset", "--stage sft needs --load: the model to tune"),
        ("--stage dpo --is-pairwise-dataset", "--stage dpo needs --load"),
        (f"--stage sft {LOAD}", r"needs --is-instruction-dataset; .*pretrain_gpt\.py"),
        (f"--stage sft --is-pairwise-dataset {LOAD}", r"pairs .* are for --stage dpo"),
        (f"{SFT} --is-pairwise-dataset", r"pairs .* are for --stage dpo"),
        (f"--stage dpo {LOAD}", "--stage dpo needs --is-pairwise-dataset"),
        (f"--stage dpo --is-instruction-dataset {LOAD}", "is for --stage sft"),
        (f"{SFT} --dpo-beta 0.2", "--dpo-beta needs --stage dpo"),
        (f"{SFT} --ref-model other", "--ref-model needs --stage dpo"),
        (f"{SFT} --pref-ftx 1", "--pref-ftx needs --stage dpo"),
        (f"{SFT} --refer-model-iter 1", "--refer-model-iter needs --stage dpo"),
        (f"{DPO} --refer-model-iter 1", "--refer-model-iter needs --ref-model"),
        (f"{DPO} --dpo-beta 0", "--dpo-beta: 0.0 is out of range: .*above 0"),
        (f"{DPO} --dpo-loss-type kto", "'kto' is not one of sigmoid, hinge, ipo"),
        (f"{DPO} --dpo-label-smoothing 0.5", "out of range: .*below 0.5"),
        (f"{DPO} --dpo-loss-type ipo --dpo-label-smoothing 0.1", "no meaning with .* ipo"),
        (f"{DPO} --dpo-loss-type hinge --dpo-label-smoothing 0.1", "no meaning with .* hinge"),
        (f"{DPO} --neat-pack --reset-attention-mask", "pairs are not packed"),
        (f"{SFT} --neat-pack", "add --reset-attention-mask"),
        (f"{SFT} --reset-position-ids", "add --reset-attention-mask"),
    ],
)
def test_command_that_cannot_be_meant_is_refused(words, expected):
    with pytest.raises(UserError, match=f"(?s){expected}"):
        parse("posttrain", f"{BASE} {words}".split())


def test_pretraining_knows_the_flags_of_tuning_and_says_whose_they_are():
    with pytest.raises(UserError, match=r"--stage is a flag of posttrain_gpt\.py"):
        parse("pretrain", f"{BASE} --stage sft --is-instruction-dataset".split())


@pytest.mark.parametrize("words", [SFT, DPO])
def test_flags_of_samples_take_effect_with_answers_and_with_pairs(words):
    config = parse("posttrain", f"{BASE} {words} --no-pad-to-seq-lengths".split())
    assert config.data.variable_seq_lengths
    assert config.inactive_flags("cpu") == []


def test_guard_takes_the_place_of_stopping():
    config = parse("posttrain", f"{BASE} {SFT} --skip-nan-loss".split())
    assert config.training.skip_nan_loss and not config.training.check_for_nan_in_loss_and_grad
    config = parse("posttrain", f"{BASE} {SFT} --skip-nan-loss --fp16".split())
    assert not config.training.skip_nan_loss  # loss scaling leaves such updates out
