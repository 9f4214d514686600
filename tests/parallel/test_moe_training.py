"""Mixtures of experts: choices and gradients against ``transformers``, equal runs at all layouts.

What is equal for one dispatcher and one set of losses at every layout is slow, the rest a soak.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.experts_reference import reference
from tests.families import VOCAB, TinyModels, write_tiny_hf
from tests.parallel.layouts import (
    build,
    first_step,
    gradients_of,
    grid,
    train,
    train_flags,
)

TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
EP2 = {"expert_model_parallel_size": 2}
ETP1 = {"expert_tensor_parallel_size": 1}
LAYOUTS = {
    "one": (1, {}),
    "DP2": (2, {}),
    "EP2": (2, EP2),
    "EP2 sharded optimizer": (2, {**EP2, "use_distributed_optimizer": True}),
    "TP2 ETP2": (2, TP2),
    "TP2 ETP1": (2, {**TP2, **ETP1}),
    "TP2 over experts": (2, {**TP2, "moe_tp_extend_ep": True}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "TP2 EP2": (4, {**TP2, **EP2}),
    "TP2 EP2 ETP1": (4, {**TP2, **EP2, **ETP1}),
}
# With a sharded optimizer no rank has the whole gradients.
WHOLE = [name for name in LAYOUTS if "sharded" not in name]
PARALLEL = [name for name in LAYOUTS if name != "one"]
ROUTER_LOSSES = {"moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.01}
REPORTED = {
    "plain": (),
    "router losses": ("load_balancing_loss", "z_loss"),
    "per sequence": ("seq_load_balancing_loss",),
}
DISPATCHERS = ["allgather", "alltoall"]


def soak(*axes: Iterable) -> list:
    """All combinations, as tests that only a soak runs."""
    return [
        pytest.param(*case, marks=pytest.mark.soak, id=" ".join(case))
        for case in itertools.product(*axes)
    ]


@pytest.fixture(scope="module")
def models(folder) -> TinyModels:
    """Tiny models of two layers."""
    return TinyModels(folder, functools.partial(write_tiny_hf, num_hidden_layers=2))


@pytest.fixture(scope="module")
def ids() -> list[list[int]]:
    return np.random.default_rng(3).integers(0, VOCAB, size=(4, 33)).tolist()


def choices_and_gradients(rank: int, world: int, argv: list[str], ids: list[list[int]]):
    """(position, choices of each layer's router, gradients) of the first step.

    Data-parallel ranks take turns with the rows.
    """
    from mindspeed.moe.router import Router
    from mindspeed_llm import distributed

    chosen: dict[int, list[np.ndarray]] = {}
    original = Router.routing

    def routing(self, *args, **kwargs):
        weights, routing_map = original(self, *args, **kwargs)
        chosen.setdefault(self.layer_number, []).append(routing_map.numpy())
        return weights, routing_map

    run = build(argv)
    at = run.position
    Router.routing = routing
    try:
        first_step(run, ids[at.data :: at.data_size])
    finally:
        Router.routing = original
    where = {"tensor": at.tensor, "data": at.data, "data_size": at.data_size}
    where |= {"expert_tensor": at.expert_tensor_rank}
    gradients = gradients_of(run)
    distributed.shutdown()
    return where, chosen, gradients


def compare_choices(parts, wanted: dict[int, np.ndarray]) -> None:
    """Every token of every row visits the same experts; TP ranks hold runs of a row's tokens."""
    found: dict[int, dict[int, dict[int, np.ndarray]]] = {}
    for where, chosen, _ in parts:
        for layer, calls in chosen.items():
            for call, routing_map in enumerate(calls):
                row = where["data"] + call * where["data_size"]
                found.setdefault(layer, {}).setdefault(row, {})[where["tensor"]] = routing_map
    assert found.keys() == wanted.keys()
    for layer, rows in found.items():
        whole = [np.concatenate([rows[r][t] for t in sorted(rows[r])]) for r in sorted(rows)]
        assert (np.stack(whole) == wanted[layer]).all(), f"layer {layer}"


def compare_gradients(folder: Path, parts, wanted: dict[str, np.ndarray]) -> None:
    import torch

    from mindspeed_llm.checkpoint.source import open_source

    source = open_source(folder)
    checked = set()
    for entry in source.entries():
        by_rank = {
            where["tensor" if entry.expert is None else "expert_tensor"]: gradients[entry.megatron]
            for where, _, gradients in parts
            if entry.megatron in gradients
        }
        ordered = [torch.from_numpy(by_rank[rank]) for rank in sorted(by_rank)]
        full = entry.split.join(ordered, entry.dims(source.shape))
        for name, gradient in entry.to_hf(source.shape, full).items():
            largest = np.abs(wanted[name]).max()
            assert np.abs(gradient.numpy() - wanted[name]).max() <= 1e-5 * largest, name
            checked.add(name)
    assert checked == set(wanted)


@pytest.mark.parametrize(
    ("model", "layout", "dispatcher", "losses"),
    [
        *grid(
            ["qwen3-moe"],
            WHOLE,
            DISPATCHERS,
            ["router losses"],
            rest=pytest.mark.soak,
            quick=[("qwen3-moe", "TP2 ETP1", "alltoall", "router losses")],
        ),
        *soak(["qwen3-moe"], WHOLE, DISPATCHERS, ["plain"]),
        *grid(
            ["qwen2-moe", "qwen3-moe-dense"],
            ["one", "EP2", "TP2 ETP2", "TP2 ETP1", "PP2"],
            ["alltoall"],
            ["plain"],
            rest=pytest.mark.soak,
            quick=[("qwen2-moe", "EP2", "alltoall", "plain")],
        ),
    ],
)
def test_first_step_equals_transformers(pool, models, data, ids, model, layout, dispatcher, losses):
    ranks, flags = LAYOUTS[layout]
    flags = flags | (ROUTER_LOSSES if losses == "router losses" else {})
    argv = train_flags(models[model], data, moe_token_dispatcher_type=dispatcher, **flags)
    parts = pool(ranks).run(choices_and_gradients, argv=argv, ids=ids)
    weights = ROUTER_LOSSES.values() if losses == "router losses" else (0.0, 0.0)
    wanted = reference(models[model], ids, *weights)
    compare_choices(parts, wanted.chosen)
    compare_gradients(models[model], parts, wanted.gradients)


@pytest.fixture(scope="module")
def alone(pool, models, data):
    """The reference curve of a model and flags: one process, computed once."""
    curves: dict[tuple, list[dict]] = {}

    def get(model: str, flags: dict) -> list[dict]:
        key = (model, *flags.items())
        if key not in curves:
            argv = train_flags(models[model], data, iters=10, **flags)
            curves[key] = pool(1).run(train, argv=argv)[0]
        return curves[key]

    return get


@pytest.mark.parametrize(
    ("layout", "dispatcher", "losses"),
    [
        *grid(
            PARALLEL,
            ["alltoall"],
            ["router losses"],
            rest=pytest.mark.soak,
            quick=[("EP2", "alltoall", "router losses")],
        ),
        *grid(["EP2", "TP2 EP2"], ["allgather"], ["plain"], rest=pytest.mark.soak, quick=[]),
        *grid(["TP2 ETP1"], ["alltoall"], ["per sequence"], rest=pytest.mark.soak, quick=[]),
        *soak(PARALLEL, ["alltoall"], ["plain", "per sequence"]),
        *soak(PARALLEL, ["allgather"], ["router losses", "per sequence"]),
    ],
)
def test_runs_equal_one_process(pool, models, data, alone, layout, dispatcher, losses):
    extra = {
        "plain": {},
        "router losses": ROUTER_LOSSES,
        "per sequence": {"moe_aux_loss_coeff": 0.1, "seq_aux": True, "micro_batch_size": 2},
    }[losses]
    ranks, flags = LAYOUTS[layout]
    one = alone("qwen3-moe", extra)
    argv = train_flags(
        models["qwen3-moe"],
        data,
        iters=10,
        moe_token_dispatcher_type=dispatcher,
        **flags,
        **extra,
    )
    rows = pool(ranks).run(train, argv=argv)[-1]
    assert len(rows) == 10
    for row, wanted in zip(rows, one, strict=True):
        assert row["lm_loss"] == pytest.approx(wanted["lm_loss"], rel=1e-5)
        assert row["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
        for name in REPORTED[losses]:
            assert row[name] == pytest.approx(wanted[name], rel=1e-5)
    assert rows[-1]["lm_loss"] < 0.95 * rows[0]["lm_loss"]


@pytest.mark.soak
@pytest.mark.parametrize(
    "flags",
    [
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        {"recompute_granularity": "selective", "recompute_modules": "moe"},
        {"recompute_granularity": "selective", "recompute_modules": "shared_experts"},
    ],
    ids=["full", "experts", "shared expert"],
)
def test_recomputation_changes_nothing(pool, models, data, flags):
    """Neither a router's losses nor its counts are taken twice."""
    plain, again = (
        pool(2).run(
            train,
            argv=train_flags(models["qwen2-moe"], data, iters=3, **EP2, **ROUTER_LOSSES, **more),
        )[-1]
        for more in ({}, flags)
    )
    # Recomputing the shared expert alone adds gradients in another order.
    tolerance = 1e-8 if flags.get("recompute_modules") == "shared_experts" else 0.0
    for row, wanted in zip(again, plain, strict=True):
        for name in ("lm_loss", "grad_norm", *REPORTED["router losses"]):
            assert row[name] == pytest.approx(wanted[name], rel=tolerance, abs=0.0)


def biases_after_a_step(rank: int, world: int, argv: list[str], ids: list[list[int]]):
    """The bias of each router of this rank, by layer, after its update."""
    from mindspeed.moe.router import Router
    from mindspeed_llm import distributed

    run = build(argv)
    first_step(run, ids[run.position.data :: run.position.data_size])
    found = {
        module.layer_number: (str(module.expert_bias.dtype), module.expert_bias.numpy().copy())
        for model in run.models
        for module in model.modules()
        if isinstance(module, Router)
    }
    distributed.shutdown()
    return found


@pytest.mark.parametrize(
    ("layout", "precision"),
    [
        *grid(
            ["EP2", "TP2 ETP1", "PP2"],
            ["fp32"],
            rest=pytest.mark.soak,
            quick=[("TP2 ETP1", "fp32")],
        ),
        *grid(["one"], ["bf16"], rest=pytest.mark.soak, quick=[]),
    ],
)
def test_bias_moves_towards_experts_that_few_tokens_visit(
    pool, folder, data, ids, layout, precision
):
    """By the same step for all (arXiv:2408.15664), from the stored fp32 value, on all ranks."""
    from safetensors.torch import load_file

    model = folder / "bias"
    if not model.exists():
        write_tiny_hf(model, "deepseek3")
    stored = load_file(model / "model.safetensors")
    ranks, flags = LAYOUTS[layout]
    flags = {**flags, "moe_router_bias_update_rate": 0.01, "bf16": precision == "bf16"}
    parts = pool(ranks).run(biases_after_a_step, argv=train_flags(model, data, **flags), ids=ids)
    chosen = reference(model, ids).chosen
    seen = set()
    for layer, (dtype, bias) in (item for found in parts for item in found.items()):
        before = stored[f"model.layers.{layer - 1}.mlp.gate.e_score_correction_bias"].numpy()
        visits = chosen[layer].sum(axis=(0, 1))
        assert dtype == "torch.float32"
        if precision == "fp32":
            step = 0.01 * np.sign(visits.mean() - visits)
            np.testing.assert_allclose(bias, before + step, rtol=0, atol=1e-7)
        else:
            # Choices may differ in bf16; the step's size does not.
            assert (np.abs(np.abs(bias - before) - 0.01) < 1e-6).mean() > 0.5
        seen.add(layer)
    assert seen == set(chosen)
