"""The same losses and gradient norms at every parallel layout, from one checkpoint and data set.

Reference: one process. Losses fall by more than a tenth, so that equality means something.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import grid, train, train_flags

LAYOUTS = {
    "TP2": (2, {"tensor_model_parallel_size": 2}),
    "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "PP2 interleaved": (
        2,
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    ),
    "PP2 uneven": (2, {"pipeline_model_parallel_size": 2, "num_layer_list": "1,3"}),
    "DP2 distributed optimizer": (2, {"use_distributed_optimizer": True}),
    "DP2 overlap": (
        2,
        {
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        },
    ),
    "TP2 PP2": (4, {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}),
}


@pytest.fixture(scope="module")
def models(folder) -> dict[str, Path]:
    return {
        "qwen3": write_tiny_hf(folder / "qwen3", "qwen3"),
        "tied": write_tiny_hf(folder / "tied", "qwen2", tie_word_embeddings=True),
        "odd heads": write_tiny_hf(
            folder / "odd", "llama", hidden_size=72, num_attention_heads=9, num_key_value_heads=3
        ),
    }


@pytest.fixture(scope="module")
def alone(pool, models, data):
    """The reference curve of a model: one process, computed once."""
    curves: dict[str, list[dict]] = {}

    def get(name: str) -> list[dict]:
        if name not in curves:
            curves[name] = pool(1).run(train, argv=train_flags(models[name], data))[0]
            losses = [row["lm_loss"] for row in curves[name]]
            assert losses[-1] < 0.9 * losses[0], losses
        return curves[name]

    return get


def assert_same_curve(found: list[dict], wanted: list[dict]) -> None:
    assert len(found) == len(wanted)
    for ours, reference in zip(found, wanted, strict=True):
        assert ours["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)
        assert ours["learning_rate"] == reference["learning_rate"]


@pytest.mark.parametrize(
    "layout",
    grid(LAYOUTS, quick=[("PP2 interleaved",), ("DP2 overlap",)]),
)
def test_layout_trains_as_one_process(pool, models, data, alone, layout):
    ranks, flags = LAYOUTS[layout]
    rows = pool(ranks).run(train, argv=train_flags(models["qwen3"], data, **flags))
    assert_same_curve(rows[-1], alone("qwen3"))


@pytest.mark.parametrize("layout", grid(["PP2", "TP2", "TP2 PP2"], quick=[("PP2",)]))
def test_tied_embeddings(pool, models, data, alone, layout):
    """CONV-01: tied embeddings train the same at PP=2, where two stages hold the table."""
    ranks, flags = LAYOUTS[layout]
    rows = pool(ranks).run(train, argv=train_flags(models["tied"], data, **flags))
    assert_same_curve(rows[-1], alone("tied"))


@pytest.mark.parametrize("layout", grid(["TP2", "TP2 SP"], quick=[("TP2 SP",)]))
def test_heads_that_do_not_divide(pool, models, data, alone, layout):
    """Nine heads on two ranks: added zero heads change neither losses nor gradients."""
    ranks, flags = LAYOUTS[layout]
    rows = pool(ranks).run(train, argv=train_flags(models["odd heads"], data, **flags))
    assert_same_curve(rows[-1], alone("odd heads"))
