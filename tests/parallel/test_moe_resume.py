"""Mixtures of experts are saved and resumed: bit by bit at their layout, equal at others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import grid, train, train_flags
from tests.parallel.test_moe_training import LAYOUTS
from tests.parallel.test_training_resume import stopped_and_resumed, words


@pytest.fixture(scope="module")
def models(folder) -> dict[str, Path]:
    return {
        "softmax": write_tiny_hf(folder / "softmax", "qwen2-moe", num_hidden_layers=2),
        "bias": write_tiny_hf(folder / "bias", "glm45", num_hidden_layers=2),
    }


@pytest.mark.parametrize(
    ("model", "layout", "ckpt_format", "precision"),
    [
        *grid(
            ["softmax"],
            ["EP2", "EP2 sharded optimizer", "TP2 ETP1", "TP2 ETP2"],
            ["torch", "torch_dist"],
            ["fp32"],
            rest=pytest.mark.soak,
            quick=[("softmax", "EP2", "torch", "fp32")],
        ),
        *grid(
            ["bias"],
            ["EP2 sharded optimizer"],
            ["torch", "torch_dist"],
            ["bf16"],
            rest=pytest.mark.soak,
            quick=[],
        ),
    ],
)
def test_resume_is_bit_identical(
    pool, models, data, tmp_path, model, layout, ckpt_format, precision
):
    ranks, flags = LAYOUTS[layout]
    flags = {**flags, "moe_router_bias_update_rate": 0.01}
    flags |= {"bf16": True} if precision == "bf16" else {}
    argv = [*train_flags(models[model], data, iters=10), *words(flags)]
    straight = pool(ranks).run(train, argv=argv)[-1]
    resumed = stopped_and_resumed(
        pool,
        models[model],
        data,
        tmp_path,
        (ranks, {}),
        (ranks, {}),
        ckpt_format=ckpt_format,
        **flags,
    )
    compared = ("iteration", "lm_loss", "grad_norm", "learning_rate", "consumed_samples")
    assert [[row[k] for k in compared] for row in resumed] == [
        [row[k] for k in compared] for row in straight[5:]
    ]


CHANGES = {
    "one to EP2": ("one", "EP2"),
    "EP2 to TP2": ("EP2 sharded optimizer", "TP2 ETP1"),
    "TP2 over experts to PP2": ("TP2 over experts", "PP2"),
}


@pytest.mark.soak
@pytest.mark.parametrize("model", ["softmax", "bias"])
@pytest.mark.parametrize("change", CHANGES)
def test_torch_dist_resumes_at_another_layout(pool, models, data, tmp_path, change, model):
    straight = pool(1).run(train, argv=train_flags(models[model], data, iters=10))[-1]
    parts = [LAYOUTS[name] for name in CHANGES[change]]
    resumed = stopped_and_resumed(
        pool, models[model], data, tmp_path, *parts, ckpt_format="torch_dist"
    )
    assert len(resumed) == 5
    for ours, reference in zip(resumed, straight[5:], strict=True):
        assert ours["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)
