"""Latent attention and multi-token prediction: gradients against ``transformers``, runs equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import further_tokens
from tests.families import VOCAB, TinyModels, write_tiny_hf
from tests.parallel.layouts import (
    build,
    first_step,
    gradients_of,
    grid,
    logits,
    train,
    train_flags,
)

LAYOUTS = {
    "one": (1, {}),
    "TP2": (2, {"tensor_model_parallel_size": 2}),
    "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "PP2 uneven": (2, {"pipeline_model_parallel_size": 2, "num_layer_list": "3,1"}),
    "PP2 interleaved": (
        2,
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    ),
    "DP2": (2, {}),
    "EP2": (2, {"expert_model_parallel_size": 2}),
    "TP2 ETP1": (
        2,
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "expert_tensor_parallel_size": 1,
        },
    ),
    "TP2 EP2": (
        4,
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "expert_model_parallel_size": 2,
        },
    ),
}
# name: (row of tests/families.py, changes, layers of multi-token prediction)
MODELS = {
    "lite dense": ("deepseek2-lite", {"first_k_dense_replace": 4}, 0),
    "v3 dense": ("deepseek3", {"first_k_dense_replace": 4}, 0),
    "v2": ("deepseek2", {}, 0),
    "v3": ("deepseek3", {}, 0),
    "v3 mtp": ("deepseek3", {}, 1),
    "v3 mtp 2": ("deepseek3-plain", {"num_nextn_predict_layers": 2}, 2),
    "glm45 mtp": ("glm45", {}, 1),
}


def write_model(folder: Path, name: str) -> Path:
    """The model of a row of ``MODELS``, or of the families' table."""
    row, changes, further = MODELS.get(name, (name, {}, 0))
    write_tiny_hf(folder, row, **changes)
    if further:
        further_tokens.add_to_folder(folder, further)
    return folder


@pytest.fixture(scope="module")
def models(folder) -> TinyModels:
    """Those of ``MODELS`` beside the families' table."""
    return TinyModels(folder, write_model)


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    return np.random.default_rng(3).integers(0, VOCAB, size=(2, 33)).tolist()


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *grid(
            ["lite dense", "v3 dense"],
            ["one", "TP2", "TP2 SP", "PP2", "PP2 uneven", "DP2"],
            rest=pytest.mark.soak,
            quick=[("v3 dense", "TP2")],
        ),
        *grid(
            ["v2", "v3", "v3 mtp", "v3 mtp 2", "glm45 mtp"],
            [name for name in LAYOUTS if name != "TP2"],
            rest=pytest.mark.soak,
            quick=[("v3 mtp", "TP2 SP")],
        ),
    ],
)
def test_first_gradients_equal_transformers(pool, models, data, ids, model, layout):
    from mindspeed_llm.checkpoint.source import open_source

    ranks, flags = LAYOUTS[layout]
    argv = train_flags(models[model], data, **flags)
    parts = pool(ranks).run(gradients_and_place, argv=argv, ids=ids)
    source = open_source(models[model])
    wanted = further_tokens.gradients(models[model], ids, MODELS[model][2])
    checked: set[str] = set()
    for entry in source.entries():
        if entry.keep_fp32:
            continue  # the router's bias has no gradient
        place = "tensor" if entry.expert is None else "expert_tensor"
        name = entry.megatron
        by_rank = {where[place]: found[name] for where, found in parts if name in found}
        checked |= compare(entry, by_rank, source.shape, wanted)
    assert checked == set(wanted)


def gradients_and_place(rank: int, world: int, argv: list[str], ids: list[list[int]]):
    """(place among the ranks, gradients) of the first step; data-parallel ranks share the rows."""
    from mindspeed_llm import distributed

    run = build(argv)
    at = run.position
    first_step(run, ids[at.data :: at.data_size])
    gradients = gradients_of(run)
    distributed.shutdown()
    return {"tensor": at.tensor, "expert_tensor": at.expert_tensor_rank}, gradients


def compare(entry, by_rank, shape, wanted) -> set[str]:
    """Compare one entry's gradients; returns the names that were compared."""
    import torch

    ordered = [torch.from_numpy(by_rank[rank]) for rank in sorted(by_rank)]
    gradients = entry.to_hf(shape, entry.split.join(ordered, entry.dims(shape)))
    names = gradients.keys() - set(entry.copies)
    for name in names:
        largest = np.abs(wanted[name]).max()
        assert np.abs(gradients[name].numpy() - wanted[name]).max() <= 1e-5 * largest, name
    return names


@pytest.mark.parametrize(
    ("model", "layout"),
    grid(
        ["deepseek2-lite", "deepseek2", "deepseek3", "deepseek3-plain", "glm45-air", "glm45"],
        ["one", "EP2", "TP2 SP"],
        rest=pytest.mark.soak,
        quick=[("deepseek2-lite", "EP2")],
    ),
)
def test_logits_equal_transformers(pool, models, data, ids, model, layout):
    import torch

    ids = [row[:32] for row in ids]  # a number that divides over sequence-parallel ranks
    ranks, flags = LAYOUTS[layout]
    found = pool(ranks).run(logits, argv=train_flags(models[model], data, **flags), ids=ids)[-1]
    with torch.no_grad():
        wanted = further_tokens.load(models[model])(torch.tensor(ids)).logits.numpy()
    for row, reference in zip(found, wanted, strict=True):
        assert np.abs(row[0] - reference).max() <= 1e-4 * np.abs(reference).max()


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *grid(
            ["lite dense", "v3 dense"], ["TP2", "TP2 SP", "PP2"], rest=pytest.mark.soak, quick=[]
        ),
        *grid(
            ["v3", "v3 mtp"],
            ["TP2 SP", "TP2 ETP1", "PP2", "PP2 uneven", "EP2", "TP2 EP2"],
            rest=pytest.mark.soak,
            quick=[("v3 mtp", "PP2")],
        ),
    ],
)
def test_runs_equal_one_process(pool, models, data, model, layout):
    ranks, flags = LAYOUTS[layout]
    one = pool(1).run(train, argv=train_flags(models[model], data, iters=10))[0]
    rows = pool(ranks).run(train, argv=train_flags(models[model], data, iters=10, **flags))[-1]
    names = ["lm_loss"] + [f"mtp_{i + 1}_loss" for i in range(MODELS[model][2])]
    assert len(rows) == 10
    for row, reference in zip(rows, one, strict=True):
        for name in names:
            assert row[name] == pytest.approx(reference[name], rel=1e-5)
    assert rows[-1]["lm_loss"] < rows[0]["lm_loss"]


@pytest.mark.soak
@pytest.mark.parametrize(
    "flags",
    [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective"},
        {"mla_zero_memory": True},
    ],
    ids=["full", "attention", "up-projections"],
)
def test_recomputation_changes_no_bit(pool, models, data, flags):
    plain = pool(1).run(train, argv=train_flags(models["v3 mtp"], data, iters=3))[0]
    again = pool(1).run(train, argv=train_flags(models["v3 mtp"], data, iters=3, **flags))[0]
    for row, reference in zip(again, plain, strict=True):
        assert (row["lm_loss"], row["grad_norm"]) == (reference["lm_loss"], reference["grad_norm"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("form", "first", "second"),
    [
        ("torch_dist", "one", "one"),
        ("torch_dist", "TP2 SP", "PP2"),
        ("torch_dist", "PP2", "TP2 SP"),
        ("torch_dist", "EP2", "EP2"),
        ("torch", "PP2", "PP2"),
        ("torch", "TP2 SP", "TP2 SP"),
    ],
)
def test_resumes(pool, models, data, tmp_path, form, first, second):
    """Four steps in one layout and four in another are eight steps of one process."""
    one = pool(1).run(train, argv=train_flags(models["v3 mtp"], data, iters=8))[0]
    saving = {"iters": 8, "save": tmp_path, "save_interval": 100, "ckpt_format": form}
    for layout, start, more in (
        (first, models["v3 mtp"], {"exit_interval": 4}),
        (second, tmp_path, {}),
    ):
        ranks, flags = LAYOUTS[layout]
        argv = train_flags(start, data, **saving, **flags, **more)
        rows = pool(ranks).run(train, argv=argv)[-1]
    assert [row["iteration"] for row in rows] == [5, 6, 7, 8]
    for row, reference in zip(rows, one[4:], strict=True):
        for name in ("lm_loss", "mtp_1_loss"):
            assert row[name] == pytest.approx(reference[name], rel=2e-5)
