"""A run goes on from a checkpoint of another layout, whatever the format; no-op layers train."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.command import main
from tests.families import write_tiny_hf
from tests.parallel.layouts import grid, train, train_flags, write_tokens

PP2 = {"pipeline_model_parallel_size": 2}
NOOP = {**PP2, "noop_layers": "1,4"}
NOOP_CHUNKS = {**PP2, "num_layers_per_virtual_pipeline_stage": 2, "noop_layers": "1,2,5,6"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reshard")


@pytest.fixture(scope="module")
def data(folder) -> Path:
    return write_tokens(folder / "data" / "tiny_text_document")


@pytest.fixture(scope="module")
def models(folder):
    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = write_tiny_hf(folder / family, family)
        return made[family]

    return get


@pytest.fixture(scope="module")
def straight(pool, models, data):
    """Ten iterations of one process, computed once a model."""
    curves: dict[str, list[dict]] = {}

    def get(family: str) -> list[dict]:
        if family not in curves:
            flags = train_flags(models(family), data, iters=10)
            curves[family] = pool(1).run(train, argv=flags)[-1]
        return curves[family]

    return get


def assert_close(ours: list[dict], reference: list[dict]) -> None:
    assert len(ours) == len(reference)
    for row, wanted in zip(ours, reference, strict=True):
        assert row["lm_loss"] == pytest.approx(wanted["lm_loss"], rel=1e-5)
        assert row["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
        assert row["learning_rate"] == wanted["learning_rate"]


@pytest.mark.parametrize("flags", [NOOP, pytest.param(NOOP_CHUNKS, marks=pytest.mark.soak)])
def test_noop_layers_change_nothing(pool, models, data, straight, flags) -> None:
    argv = train_flags(models("qwen3"), data, iters=10, **flags)
    assert_close(pool(2).run(train, argv=argv)[-1], straight("qwen3"))


# (first layout, second layout) as (ranks, flags); five iterations at each.
TP2 = {"tensor_model_parallel_size": 2}
SHARDED = {"use_distributed_optimizer": True}
EP2 = {"expert_model_parallel_size": 2}
CHANGES = {
    "TP2 to PP2": ("qwen3", (2, TP2), (2, PP2)),
    "DP2 sharded to TP2": ("qwen3", (2, SHARDED), (2, TP2)),
    "TP2 to DP2 sharded bf16": (
        "qwen3",
        (2, {**TP2, "bf16": True}),
        (2, {**SHARDED, "bf16": True}),
    ),
    "PP2 no-op to one": ("qwen2", (2, NOOP), (1, {})),
    "EP2 to PP2": ("qwen3-moe", (2, {**EP2, **SHARDED}), (2, PP2)),
    "one to EP2": ("qwen3-moe-dense", (1, {}), (2, EP2)),
}


@pytest.mark.parametrize(
    ("change", "ckpt_format"),
    grid(
        CHANGES,
        ["torch", "torch_dist"],
        rest=pytest.mark.soak,
        quick=[("EP2 to PP2", "torch"), ("TP2 to DP2 sharded bf16", "torch_dist")],
    ),
)
def test_a_run_resumes_at_another_layout(
    pool, models, data, straight, tmp_path, change, ckpt_format
) -> None:
    """Weights and Adam's state go on at any layout, sharded over data parallelism or not."""
    family, first, second = CHANGES[change]
    for iters, (ranks, flags), load in ((5, first, models(family)), (10, second, tmp_path)):
        argv = train_flags(
            load, data, iters=10, save=tmp_path, save_interval=100, ckpt_format=ckpt_format,
            exit_interval=5 if iters == 5 else None, **flags,
        )  # fmt: skip
        rows = pool(ranks).run(train, argv=argv)[-1]
    reference = straight(family)[5:]
    if "bf16" not in first[1]:
        assert_close(rows, reference)
        return
    for row, wanted in zip(rows, reference, strict=True):
        assert row["lm_loss"] == pytest.approx(wanted["lm_loss"], rel=2e-2)


CONVERTED = {
    "qwen2": (
        {"bf16": True, **SHARDED},
        ["--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", "2"],
        ["--noop-layers", "0,5"],
    ),
    "qwen3-moe-dense": (
        {},
        ["--target-tensor-parallel-size", "2", "--target-expert-parallel-size", "4"],
        ["--expert-tensor-parallel-size", "1", "--moe-grouped-gemm"],
    ),
}


@pytest.mark.parametrize(
    ("family", "first", "second"),
    grid(
        CONVERTED,
        ["torch", "torch_dist"],
        ["torch", "torch_dist"],
        rest=pytest.mark.soak,
        quick=[("qwen2", "torch", "torch_dist")],
    ),
)
def test_a_run_resharded_twice_continues_bit_by_bit(
    pool, models, data, tmp_path, family, first, second
) -> None:
    """Weights and Adam's state through another layout and back are what they were."""
    flags, sizes, more = CONVERTED[family]
    start, there, back = (tmp_path / name for name in ("start", "there", "back"))
    argv = train_flags(models(family), data, iters=4, **flags)
    straight = pool(1).run(train, argv=argv)[-1]
    saving = {"save_interval": 100, "ckpt_format": first, **flags}
    argv = train_flags(models(family), data, iters=4, save=start, exit_interval=2, **saving)
    pool(1).run(train, argv=argv)
    kinds = ["--load-model-type", "mg", "--save-model-type", "mg", "--verify", "accounting"]
    main([*kinds, "--load-dir", str(start), "--save-dir", str(there), *sizes, *more,
          "--ckpt-format", second])  # fmt: skip
    main([*kinds, "--load-dir", str(there), "--save-dir", str(back), "--ckpt-format", first])
    assert (back / "latest_checkpointed_iteration.txt").read_text() == "2"
    again = train_flags(back, data, iters=4, save=back, **saving)
    resumed = pool(1).run(train, argv=again)[-1]
    compared = ("iteration", "lm_loss", "grad_norm", "learning_rate", "consumed_samples")
    assert [[row[k] for k in compared] for row in resumed] == [
        [row[k] for k in compared] for row in straight[2:]
    ]


def test_state_that_cannot_go_along_is_never_dropped_silently(
    pool, models, data, tmp_path, capsys
) -> None:
    start, target = tmp_path / "start", tmp_path / "target"
    saving = {"save_interval": 100, "exit_interval": 1, "ckpt_format": "torch"}
    argv = train_flags(models("qwen2"), data, iters=4, save=start, **saving)
    pool(1).run(train, argv=argv)
    command = ["--load-model-type", "mg", "--save-model-type", "mg", "--verify", "accounting"]
    command += ["--load-dir", str(start), "--save-dir", str(target), "--params-dtype", "bf16"]
    with pytest.raises(UserError, match="optimizer's state, which does not go along with --par"):
        main(command)
    assert not target.exists()
    main([*command, "--no-save-optim"])
    assert "optimizer's state (--no-save-optim)" in capsys.readouterr().out
