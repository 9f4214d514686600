"""SFT: step by step as a loop on ``transformers``, at every layout, packed as unpacked, resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.instruction_data import IGNORE, Row, pack, sample, samples, write
from tests.parallel.layouts import grid, train, train_and_tell
from tests.parallel.pool import RankError
from tests.parallel.tuning import (
    BATCH,
    LAYOUTS,
    LENGTH,
    assert_same_weights,
    log_probabilities,
    reference_run,
    tune_flags,
    weights_of,
)

STEPS = 10
DYNAMIC = {"no_pad_to_seq_lengths": True, "variable_seq_lengths": True}
PACKED = {"neat_pack": True, "reset_attention_mask": True, "reset_position_ids": True}


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_hf(folder / "model", "qwen3")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return samples(STEPS * BATCH)


@pytest.fixture(scope="module")
def prefix(folder, rows) -> Path:
    return write(folder / "data" / "plain", rows)


@pytest.fixture(scope="module")
def reference(model, rows):
    """The loss of a global batch is the mean over its trained tokens."""

    def loss_of(model, batch):
        found = [log_probabilities(model, row) for row in batch]
        return -sum(one.sum() for one in found) / sum(len(one) for one in found)

    batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
    return reference_run(model, batches, loss_of)


def tune(pool, ranks: int, argv: list[str]) -> list[dict]:
    return pool(ranks).run(train, argv=argv, tool="posttrain")[-1]


@pytest.mark.parametrize(
    "layout, form",
    grid(LAYOUTS, ["fixed", "dynamic"], quick=[("one", "fixed"), ("TP2 SP", "dynamic")]),
)
def test_ten_steps_are_those_of_transformers(
    pool, model, prefix, reference, tmp_path, layout, form
):
    ranks, more = LAYOUTS[layout]
    more = more | (DYNAMIC if form == "dynamic" else {})
    save = {"save": tmp_path, "save_interval": 100, "enable_mg2hf_convert": True}
    found = tune(pool, ranks, tune_flags("sft", model, prefix, STEPS, **save, **more))
    losses, norms, weights = reference
    assert losses[-1] < 0.8 * losses[0]
    assert [row["lm_loss"] for row in found] == pytest.approx(losses, rel=1e-5)
    assert [row["grad_norm"] for row in found] == pytest.approx(norms, rel=1e-4)
    assert_same_weights(weights_of(tmp_path / f"mg2hf_iteration{STEPS}"), weights, rel=1e-5)


@pytest.mark.parametrize("layout", grid(["one", "PP2", "TP2 PP2"], quick=[("PP2",)]))
def test_pack_01_packed_trains_as_unpacked(pool, model, folder, rows, layout):
    """PACK-01: the same tokens in a step give the same loss, gradient and next step."""
    ranks, more = LAYOUTS[layout]
    few = rows[:24]
    packed = pack(few, LENGTH)
    apart = write(folder / "pack" / "apart", few)
    together = write(folder / "pack" / "together", packed)
    one = tune(
        pool, 1, tune_flags("sft", model, apart, 3, global_batch_size=len(few), padded_samples=True)
    )
    flags = tune_flags("sft", model, together, 3, global_batch_size=len(packed), **PACKED, **more)
    two = tune(pool, ranks, flags)
    for key, rel in (("lm_loss", 1e-5), ("grad_norm", 1e-4)):
        assert [row[key] for row in two] == pytest.approx([row[key] for row in one], rel=rel)


def test_batch_without_a_trained_token_adds_nothing_and_is_told(pool, model, folder):
    rows = [sample([5, 6, 7], [9, 9, 2]), Row([5, 6, 7, 8], [IGNORE] * 4, [1] * 4)]
    prefix = write(folder / "empty" / "data", rows)
    argv = tune_flags("sft", model, prefix, 1, global_batch_size=2)
    found, said = pool(1).run(train_and_tell, argv=argv, tool="posttrain")[-1]
    alone = write(folder / "empty" / "alone", rows[:1])
    argv = tune_flags("sft", model, alone, 1, global_batch_size=1)
    assert found[0]["lm_loss"] == pytest.approx(tune(pool, 1, argv)[0]["lm_loss"], rel=1e-6)
    assert "1 micro-batches hold no token that is trained" in said


def test_script_with_finetune_goes_on_within_a_pass(pool, model, prefix, tmp_path):
    """The same command again, with --auto-resume: bit for bit the rest of a straight run."""
    more = {"save": tmp_path, "save_interval": 100, "auto_resume": True, "no_shuffle": False}
    straight = tune(pool, 1, tune_flags("sft", model, prefix, 5, no_shuffle=False))
    tune(pool, 1, tune_flags("sft", model, prefix, 5, exit_interval=3, **more))
    resumed = tune(pool, 1, tune_flags("sft", model, prefix, 5, **more))
    for key in ("lm_loss", "grad_norm"):
        assert [row[key] for row in resumed] == [row[key] for row in straight[3:]]


def test_update_that_is_not_finite_is_left_out_and_told(pool, model, prefix, tmp_path):
    """--skip-nan-loss: weights that make a NaN stay as they are, and the run ends after ten."""
    broken = _with_nan(model, tmp_path / "broken")
    flags = {"skip_nan_loss": True, "eval_iters": 0}
    argv = tune_flags("sft", broken, prefix, 3, **flags)
    rows, said = pool(2).run(
        train_and_tell, argv=[*argv, *"--pipeline-model-parallel-size 2".split()], tool="posttrain"
    )[-1]
    assert said.count("loss and gradient not finite; the update is left out") == 3
    assert rows[-1]["skipped_iterations"] == 1 and rows[-1]["nan_iterations"] == 1
    with pytest.raises(RankError, match="10 iterations in a row"):
        tune(pool, 1, tune_flags("sft", broken, prefix, 12, **flags))


def _with_nan(model: Path, folder: Path) -> Path:
    """A copy of a model with one weight that is not a number."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    file = next(folder.glob("*.safetensors"))
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    return folder
