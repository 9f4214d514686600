"""A run goes on from a checkpoint of another layout, whatever the format; no-op layers train."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.parallel.layouts import train, train_flags, write_tokens

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


@pytest.mark.parametrize("flags", [NOOP, pytest.param(NOOP_CHUNKS, marks=pytest.mark.slow)])
def test_noop_layers_change_nothing(pool, models, data, straight, flags) -> None:
    argv = train_flags(models("qwen3"), data, iters=10, **flags)
    assert_close(pool(2).run(train, argv=argv)[-1], straight("qwen3"))
