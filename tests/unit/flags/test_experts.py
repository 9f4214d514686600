"""Flags of mixtures of experts: what they imply, and what does not go together."""

from __future__ import annotations

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.flags import parse, validate

BASE = (
    "--seq-length 32 --train-iters 1 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer "
    "--vocab-size 128 --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
    "--num-experts 8 --moe-ffn-hidden-size 24 --moe-router-topk 2 "
)
TP2 = "--tensor-model-parallel-size 2 --sequence-parallel "


def config(words: str):
    return parse("pretrain", (BASE + words).split())


def test_what_is_implied(capsys):
    moe = config(
        TP2 + "--moe-tp-extend-ep --expert-model-parallel-size 2 --seq-aux "
        "--moe-token-dispatcher-type alltoall_seq --router-gating-in-fp32 --moe-aux-loss-coeff 0.1"
    ).moe
    assert (moe.expert_model_parallel_size, moe.expert_tensor_parallel_size) == (4, 1)
    assert moe.moe_router_load_balancing_type == "seq_aux_loss"
    assert (moe.moe_token_dispatcher_type, moe.moe_router_dtype) == ("alltoall", "fp32")
    said = capsys.readouterr().out
    assert "--moe-tp-extend-ep means --expert-model-parallel-size 4" in said


@pytest.mark.parametrize(
    ("words", "world", "message"),
    [
        ("--expert-model-parallel-size 3", 3, "8 experts do not divide over"),
        ("--expert-model-parallel-size 4", 2, "2 processes .* 4 x 1 = 4"),
        (TP2 + "--expert-model-parallel-size 2", 2, "2 processes .* 2 x 2 = 4"),
        (
            "--tensor-model-parallel-size 2 --moe-ffn-hidden-size 25 --sequence-parallel",
            2,
            "width 25 does not divide over 2 .* --expert-tensor-parallel-size 1",
        ),
        (TP2 + "--moe-shared-expert-intermediate-size 33", 2, "shared expert's width 33"),
        ("--tensor-model-parallel-size 2", 2, "needs --sequence-parallel"),
        ("--moe-aux-loss-coeff 0.1 --moe-router-load-balancing-type none", 1, "other than none"),
        ("--moe-router-enable-expert-bias", 1, "needs --moe-router-score-function sigmoid"),
        (
            "--use-tp-pp-dp-mapping --pipeline-model-parallel-size 2 "
            "--expert-model-parallel-size 2",
            4,
            "experts that lie as the other layers do",
        ),
        ("--num-experts 0 --expert-model-parallel-size 2", 2, "needs a model with experts"),
    ],
)
def test_what_does_not_go_together(words, world, message):
    with pytest.raises(UserError, match=message):
        validate(config(words), world)


@pytest.mark.parametrize(
    ("words", "world"),
    [
        ("--expert-model-parallel-size 2", 2),
        (TP2, 2),
        (TP2 + "--expert-tensor-parallel-size 1", 2),
        (TP2 + "--expert-tensor-parallel-size 1 --expert-model-parallel-size 2", 2),
        (TP2 + "--expert-model-parallel-size 2", 4),
    ],
)
def test_layouts_that_train(words, world):
    assert validate(config(words), world).world_size == world


def test_speed_flags_are_reported():
    lines = config("--moe-grouped-gemm --moe-alltoall-overlap-comm").inactive_flags("cpu")
    assert any("--moe-grouped-gemm" in line and "one after the other" in line for line in lines)
    assert any("--moe-alltoall-overlap-comm" in line for line in lines)


def test_units_of_shared_experts_are_a_width():
    from mindspeed_llm.models.megatron_flags import from_flags, to_flags

    cfg = config("--n-shared-experts 2 --first-k-dense-replace -1 --ffn-hidden-size 96")
    shape = from_flags({**vars(cfg.model), **vars(cfg.moe)}, seq_length=32)
    assert shape.experts is not None
    assert shape.experts.moe_shared_expert_intermediate_size == 48
    assert shape.experts.first_k_dense_replace == 0
    assert to_flags(shape)["n_shared_experts"] == 2
