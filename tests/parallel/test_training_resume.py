"""A run that stops and resumes in fresh processes continues as if it had not stopped.

CKPT, TRAIN-01 (learning rate after a resume), TRAIN-10 (optimizer state after a resume).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import grid, train, train_flags

OPTIMIZERS = {"replicated": {}, "distributed": {"use_distributed_optimizer": True}}


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_hf(folder / "model", "qwen2", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def odd_model(folder) -> Path:
    return write_tiny_hf(
        folder / "odd", "llama", hidden_size=72, num_attention_heads=9, num_key_value_heads=3
    )


def stopped_and_resumed(pool, model, data, save, first, second, **common):
    """Five iterations at one layout, then five more at another, from the saved checkpoint.

    Args:
        first, second: (ranks, flags) of the two parts.
    """
    ranks, flags = first
    start = train_flags(model, data, iters=10, save=save, save_interval=100, exit_interval=5)
    pool(ranks).run(train, argv=[*start, *words(flags, common)])
    ranks, flags = second
    again = train_flags(save, data, iters=10, save=save, save_interval=100)
    return pool(ranks).run(train, argv=[*again, *words(flags, common)])[-1]


def test_a_run_resumed_at_its_end_saves_nothing_again(pool, model, data, tmp_path):
    flags = {"iters": 3, "save": tmp_path, "save_interval": 100}
    pool(1).run(train, argv=train_flags(model, data, **flags))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")}
    assert before
    pool(1).run(train, argv=train_flags(tmp_path, data, **flags))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pt")} == before


def words(*groups: dict) -> list[str]:
    merged = {name: value for group in groups for name, value in group.items()}
    return [
        word
        for name, value in merged.items()
        for word in ([f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)]))
    ]


@pytest.mark.parametrize(
    ("ckpt_format", "precision", "optimizer"),
    grid(
        ["torch", "torch_dist"],
        ["fp32", "bf16"],
        OPTIMIZERS,
        quick=[("torch", "fp32", "replicated"), ("torch_dist", "bf16", "distributed")],
    ),
)
def test_resume_is_bit_identical(pool, model, data, tmp_path, ckpt_format, precision, optimizer):
    flags = {**OPTIMIZERS[optimizer], **({"bf16": True} if precision == "bf16" else {})}
    straight = pool(2).run(train, argv=[*train_flags(model, data, iters=10), *words(flags)])[-1]
    resumed = stopped_and_resumed(
        pool, model, data, tmp_path, (2, {}), (2, {}), ckpt_format=ckpt_format, **flags
    )
    compared = ("iteration", "lm_loss", "grad_norm", "learning_rate", "consumed_samples")
    assert [[row[k] for k in compared] for row in resumed] == [
        [row[k] for k in compared] for row in straight[5:]
    ]


CHANGES = {
    "DP2 to one": ((2, {}), (1, {})),
    "TP2 to PP2": (
        (2, {"tensor_model_parallel_size": 2}),
        (2, {"pipeline_model_parallel_size": 2}),
    ),
    "one to TP2": ((1, {}), (2, {"tensor_model_parallel_size": 2})),
    "PP2 to DP2": ((2, {"pipeline_model_parallel_size": 2}), (2, {})),
}


@pytest.mark.parametrize(
    ("change", "optimizer"),
    grid(CHANGES, OPTIMIZERS, quick=[]),
)
def test_torch_dist_resumes_at_another_layout(pool, model, data, tmp_path, change, optimizer):
    straight = pool(1).run(train, argv=train_flags(model, data, iters=10))[-1]
    resumed = stopped_and_resumed(
        pool,
        model,
        data,
        tmp_path,
        *CHANGES[change],
        ckpt_format="torch_dist",
        **OPTIMIZERS[optimizer],
    )
    for ours, reference in zip(resumed, straight[5:], strict=True):
        assert ours["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)
        assert ours["learning_rate"] == reference["learning_rate"]


@pytest.mark.parametrize(
    ("change", "optimizer"),
    grid(["one to TP2", "TP2 to PP2"], OPTIMIZERS, quick=[("TP2 to PP2", "distributed")]),
)
def test_padding_heads_come_and_go(pool, odd_model, data, tmp_path, change, optimizer):
    """Nine heads: TP 2 pads them, the other layout does not, the optimizer state follows."""
    straight = pool(1).run(train, argv=train_flags(odd_model, data, iters=10))[-1]
    resumed = stopped_and_resumed(
        pool,
        odd_model,
        data,
        tmp_path,
        *CHANGES[change],
        ckpt_format="torch_dist",
        **OPTIMIZERS[optimizer],
    )
    for ours, reference in zip(resumed, straight[5:], strict=True):
        assert ours["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_torch_format_resumes_at_another_data_parallel_size(pool, model, data, tmp_path, optimizer):
    straight = pool(1).run(train, argv=train_flags(model, data, iters=10))[-1]
    resumed = stopped_and_resumed(
        pool, model, data, tmp_path, (2, {}), (1, {}), ckpt_format="torch", **OPTIMIZERS[optimizer]
    )
    for ours, reference in zip(resumed, straight[5:], strict=True):
        assert ours["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)
