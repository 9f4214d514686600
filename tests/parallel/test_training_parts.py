"""What is restored, what is not, and what a run says about it (CKPT-02, TRAIN-01)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import train, train_and_tell, train_flags
from tests.parallel.pool import RankError


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_hf(folder / "model", "llama", num_hidden_layers=2)


@pytest.fixture(scope="module")
def saved(pool, model, data, folder) -> Path:
    """Five of ten iterations, saved in format torch."""
    save = folder / "saved"
    argv = train_flags(model, data, iters=10, save=save, save_interval=100, exit_interval=5)
    pool(1).run(train, argv=[*argv, "--ckpt-format", "torch"])
    return save


def cosine(iteration: int, peak: float, low: float) -> float:
    """The rate of a 1-based iteration of the 10-iteration schedule with 2 of warm-up."""
    done = iteration - 1
    if done <= 2:
        return peak * done / 2
    return low + 0.5 * (1 + math.cos(math.pi * (done - 2) / 8)) * (peak - low)


def rates(rows: list[dict]) -> list[float]:
    return [row["learning_rate"] for row in rows]


def test_resume_continues_the_schedule(pool, saved, data):
    """TRAIN-01: no second warm-up."""
    rows = pool(1).run(train, argv=train_flags(saved, data, iters=10))[0]
    assert rates(rows) == pytest.approx([cosine(i, 1e-3, 1e-4) for i in range(6, 11)])


def test_another_rate_is_reported_and_not_used(pool, saved, data):
    """TRAIN-01: without the override switch only saved values count, and the conflict is said."""
    argv = train_flags(saved, data, iters=10, lr=5e-3, min_lr=5e-4)
    rows, said = pool(1).run(train_and_tell, argv=argv)[0]
    assert rates(rows) == pytest.approx([cosine(i, 1e-3, 1e-4) for i in range(6, 11)])
    assert "max_lr 0.005 (saved: 0.001)" in said


def test_override_uses_only_new_values(pool, saved, data):
    """TRAIN-01: with the switch, peak and minimum are both the new ones."""
    argv = train_flags(saved, data, iters=10, lr=5e-3, min_lr=5e-4)
    rows = pool(1).run(train, argv=[*argv, "--override-opt_param-scheduler"])[0]
    assert rates(rows) == pytest.approx([cosine(i, 5e-3, 5e-4) for i in range(6, 11)])


def test_finetune_starts_again_at_iteration_zero(pool, saved, data):
    argv = [*train_flags(saved, data, iters=3), "--finetune"]
    rows, said = pool(1).run(train_and_tell, argv=argv)[0]
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert "--finetune: iteration, schedule, optimizer" in said


def test_a_converted_checkpoint_starts_at_iteration_zero(pool, model, data, tmp_path):
    from mindspeed_llm.checkpoint.command import main as convert

    folders = ["--load-dir", str(model), "--save-dir", str(tmp_path / "mg")]
    kinds = ["--load-model-type", "hf", "--save-model-type", "mg", "--model-type-hf", "llama2"]
    flags = ["--target-tensor-parallel-size", "2", "--verify", "accounting"]
    assert not convert([*kinds, *folders, *flags])
    argv = train_flags(tmp_path / "mg", data, iters=3)
    rows, said = pool(1).run(train_and_tell, argv=argv)[0]
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    assert "training starts at iteration 0" in said and "resharded TP2 PP1 -> TP1 PP1" in said


def test_missing_optimizer_state_is_named(pool, model, data, tmp_path):
    """CKPT-02: no optimizer in the checkpoint is an error that names it and the way out."""
    argv = train_flags(model, data, iters=3, save=tmp_path, save_interval=10)
    pool(1).run(train, argv=[*argv, "--no-save-optim", "--ckpt-format", "torch"])
    argv = train_flags(tmp_path, data, iters=6)
    with pytest.raises(RankError, match=r"no optimizer state.*--no-load-optim"):
        pool(1).run(train, argv=argv)
    rows = pool(1).run(train, argv=[*argv, "--no-load-optim"])[0]
    assert [row["iteration"] for row in rows] == [4, 5, 6]


@pytest.mark.parametrize(
    "ranks, more",
    [(1, {"use_distributed_optimizer": True}), (2, {"tensor_model_parallel_size": 2})],
    ids=["distributed optimizer", "TP2"],
)
def test_torch_optimizer_state_goes_on_elsewhere(pool, saved, data, ranks, more):
    """Format torch: at another layout, or with the other kind of optimizer, losses are the same."""
    straight = pool(1).run(train, argv=train_flags(saved, data, iters=10))[-1]
    rows = pool(ranks).run(train, argv=train_flags(saved, data, iters=10, **more))[-1]
    assert [row["iteration"] for row in rows] == [6, 7, 8, 9, 10]
    expected = [row["lm_loss"] for row in straight]
    assert [row["lm_loss"] for row in rows] == pytest.approx(expected, rel=1e-5)


def test_sequence_that_does_not_divide_is_refused(pool, model, data):
    """TRAIN-09: a fixed length that sequence parallelism cannot split is refused at the start."""
    argv = train_flags(
        model, data, seq_length=31, tensor_model_parallel_size=2, sequence_parallel=True
    )
    with pytest.raises(RankError, match="--seq-length 31 does not divide"):
        pool(2).run(train, argv=argv)
