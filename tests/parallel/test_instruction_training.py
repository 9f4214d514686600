"""Instruction data train alike at every layout, fixed, dynamic and packed; resumed runs too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.instruction_data import IGNORE, Row, pack, sample, samples, write
from tests.parallel.layouts import grid, logits, train, train_and_tell, train_flags

LENGTH = 48
LAYOUTS = {
    "DP2": (2, {"use_distributed_optimizer": True}),
    "PP2": (2, {"pipeline_model_parallel_size": 2}),
    "PP2 interleaved": (
        2,
        {"pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 1},
    ),
    "TP2": (2, {"tensor_model_parallel_size": 2}),
    "TP2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP4": (4, {"pipeline_model_parallel_size": 4}),
    "TP2 PP2": (
        4,
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "pipeline_model_parallel_size": 2,
        },
    ),
}
FORMS = {
    "fixed": {},
    "dynamic": {"no_pad_to_seq_lengths": True, "pad_to_multiple_of": 1, "micro_batch_size": 2},
    "packed": {"neat_pack": True, "reset_attention_mask": True, "reset_position_ids": True},
}


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_hf(folder / "model", "qwen3")


@pytest.fixture(scope="module")
def prefixes(folder) -> dict[str, Path]:
    rows = samples(50)
    plain = write(folder / "data" / "plain", rows)
    packed = write(folder / "data" / "rows", pack(rows, LENGTH))
    return {"fixed": plain, "dynamic": plain, "packed": packed}


def flags(model: Path, prefix: Path, iters: int = 6, **more) -> list[str]:
    common = {"is_instruction_dataset": True, "seq_length": LENGTH, "lr": 3e-3}
    return train_flags(model, prefix, iters=iters, **{**common, **more})


@pytest.fixture(scope="module")
def alone(pool, model, prefixes):
    """The curve of a form in one process, computed once."""
    curves: dict[str, list[dict]] = {}

    def get(form: str) -> list[dict]:
        if form not in curves:
            argv = flags(model, prefixes[form], **FORMS[form])
            curves[form] = pool(1).run(train, argv=argv)[0]
            losses = [row["lm_loss"] for row in curves[form]]
            assert losses[-1] < 0.95 * losses[0], losses
        return curves[form]

    return get


def assert_same(found: list[dict], wanted: list[dict]) -> None:
    assert len(found) == len(wanted)
    for ours, reference in zip(found, wanted, strict=True):
        assert ours["lm_loss"] == pytest.approx(reference["lm_loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)


@pytest.mark.parametrize(
    "layout, form",
    grid(
        LAYOUTS,
        FORMS,
        quick=[("DP2", "fixed"), ("TP2 SP", "dynamic"), ("PP2 interleaved", "packed")],
    ),
)
def test_layout_trains_as_one_process(pool, model, prefixes, alone, layout, form):
    """Every stage of PP2 interleaved, and the middle ones of PP4, know the samples of a row."""
    ranks, more = LAYOUTS[layout]
    argv = flags(model, prefixes[form], **FORMS[form], **more)
    assert_same(pool(ranks).run(train, argv=argv)[-1], alone(form))


@pytest.mark.parametrize(
    "layout, form",
    grid(["one", "PP2"], ["dynamic", "packed"], quick=[("one", "packed"), ("PP2", "dynamic")]),
)
def test_stopped_within_a_pass_and_resumed(pool, model, prefixes, tmp_path, layout, form):
    """The same samples in the same order, and bit for bit the same losses."""
    ranks, more = LAYOUTS.get(layout, (1, {}))
    more = {**FORMS[form], **more}
    straight = pool(ranks).run(train, argv=flags(model, prefixes[form], **more))[-1]
    more |= {"save": tmp_path, "save_interval": 100}
    pool(ranks).run(train, argv=flags(model, prefixes[form], exit_interval=3, **more))
    resumed = pool(ranks).run(train, argv=flags(tmp_path, prefixes[form], **more))[-1]
    assert [row["lm_loss"] for row in resumed] == [row["lm_loss"] for row in straight[3:]]
    assert [row["grad_norm"] for row in resumed] == [row["grad_norm"] for row in straight[3:]]


def few(model, prefix, iters: int = 1, **more) -> list[str]:
    """Flags of a step or two, over the samples in their own order."""
    return flags(model, prefix, iters, no_shuffle=True, lr_warmup_iters=0, **more)


def one_step(pool, model, prefix, ranks: int = 1, **more) -> dict:
    return pool(ranks).run(train, argv=few(model, prefix, **more))[-1][-1]


def assert_same_step(ours: dict, reference: dict) -> None:
    assert_same([ours], [reference])


def test_packed_loss_is_that_of_the_samples(pool, model, folder):
    """PACK-01: the token-weighted loss, and its gradient, of the samples one by one."""
    rows = samples(12, seed=5)
    packed = pack(rows, LENGTH)
    apart = one_step(pool, model, write(folder / "a" / "apart", rows), global_batch_size=12)
    together = one_step(
        pool,
        model,
        write(folder / "a" / "together", packed),
        global_batch_size=len(packed),
        **FORMS["packed"],
    )
    assert len(packed) < 8
    assert_same_step(together, apart)


def test_train_05_the_mean_is_over_tokens(pool, model, folder):
    """TRAIN-05: 1, 10, 100 and 3 trained tokens, in any division into micro-batches and ranks."""
    rows = [sample([5, 6, 7], [9] * trained) for trained in (1, 10, 100, 3)]
    prefix = write(folder / "b" / "data", rows)
    steps = [
        one_step(pool, model, prefix, ranks, seq_length=112, micro_batch_size=size)
        for ranks, size in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2))
    ]
    for step in steps[1:]:
        assert_same_step(step, steps[0])


@pytest.mark.parametrize("ranks", [1, 2])
def test_train_04_micro_batches_without_a_trained_token(pool, model, folder, ranks):
    """TRAIN-04: they add nothing, on whatever rank, and the log says so."""
    rows = [sample([5, 6, 7 + n], [9 + n] * 4) for n in range(2)]
    empty = [Row(row.tokens, [IGNORE] * len(row.tokens), row.segments) for row in rows]
    half = write(folder / f"c{ranks}" / "half", [rows[0], empty[0], rows[1], empty[1]])
    full = write(folder / f"c{ranks}" / "full", rows)
    overlap = {"overlap_grad_reduce": True} if ranks > 1 else {}
    argv = few(model, half, **overlap)
    found, said = pool(ranks).run(train_and_tell, argv=argv)[-1]
    assert "iteration 1: 2 micro-batches hold no token that is trained" in said
    assert_same_step(found[-1], one_step(pool, model, full, global_batch_size=2))


def test_train_04_a_batch_without_any_trained_token(pool, model, folder):
    """TRAIN-04: no loss of 0, no NaN; the gradient is zero and the next iteration goes on."""
    empty = Row([5, 6, 7], [IGNORE] * 3, [1] * 3)
    rows = [empty] * 4 + [sample([5, 6, 7 + n], [9 + n] * 4) for n in range(4)]
    prefix = write(folder / "d" / "data", rows)
    argv = few(model, prefix, iters=2)
    found, said = pool(1).run(train_and_tell, argv=argv)[-1]
    assert "iteration 1: 4 micro-batches hold no token that is trained" in said
    assert found[0].get("lm_loss") is None and found[0]["grad_norm"] == 0
    assert found[0]["nan_iterations"] == 0
    assert found[1]["lm_loss"] > 1


def test_train_09_odd_lengths_with_sequence_parallelism(pool, model, folder):
    """TRAIN-09: lengths 7, 13 and 47, and packed 5 + 6, are padded to what two ranks need."""
    rows = [sample([5, 6, 7], [9] * rest) for rest in (4, 10, 44)]
    prefix = write(folder / "e" / "data", rows)
    common = {"global_batch_size": 3, "no_pad_to_seq_lengths": True, "pad_to_multiple_of": 1}
    ranks, layout = LAYOUTS["TP2 SP"]
    reference = one_step(pool, model, prefix, **common)
    assert_same_step(one_step(pool, model, prefix, ranks, **common, **layout), reference)
    packed = [
        Row(
            [5, 6, 9, 9, 9, 3, 4, 8, 8, 8, 8],
            [IGNORE] * 2 + [9] * 3 + [IGNORE] * 2 + [8] * 4,
            [1] * 5 + [2] * 6,
        )
    ]
    prefix = write(folder / "e" / "packed", packed)
    common |= {"global_batch_size": 1, **FORMS["packed"]}
    reference = one_step(pool, model, prefix, **common)
    assert_same_step(one_step(pool, model, prefix, ranks, **common, **layout), reference)


@pytest.mark.parametrize(
    "family, layout",
    grid(
        ["qwen3", "gemma2", "deepseek3"],
        ["TP2 SP", "PP2 interleaved", "PP4"],
        quick=[("deepseek3", "TP2 SP")],
    ),
)
def test_samples_of_a_row_do_not_see_each_other(pool, folder, family, layout):
    """PACK-01: at parallel layouts, middle stages included."""
    import numpy as np

    path = folder / f"family-{family}"
    hf = path if path.exists() else write_tiny_hf(path, family)
    ranks, more = LAYOUTS[layout]
    argv = train_flags(hf, Path("none"), seq_length=24, **more)
    ids = [(7 * n * n + 11 * n + 5) % 131 for n in range(24)]
    changed = [*ids[:3], (ids[3] + 1) % 131, *ids[4:]]
    segments = [1] * 9 + [2] * 15
    before, after = pool(ranks).run(logits, argv=argv, ids=[ids, changed], segments=segments)[-1]
    alone = pool(1).run(logits, argv=train_flags(hf, Path("none"), seq_length=15), ids=[ids[9:]])[0]
    moved = np.abs(after - before).max(axis=-1)[0]
    assert moved[3:9].max() > 1e-3
    assert moved[9:].max() <= 1e-6
    np.testing.assert_allclose(before[0, 9:], alone[0][0], rtol=1e-4, atol=1e-5)
