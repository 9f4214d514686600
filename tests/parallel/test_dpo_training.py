"""DPO: step by step as written by hand on ``transformers``, at every layout, and resumed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.families import write_tiny_hf
from tests.instruction_data import IGNORE, Row, sample, samples, write_pairs
from tests.parallel.layouts import grid, train, train_and_tell
from tests.parallel.pool import RankError
from tests.parallel.tuning import (
    BATCH,
    LAYOUTS,
    assert_same_weights,
    log_probabilities,
    reference_run,
    tune_flags,
    weights_of,
)

STEPS = 6
# Slow enough that no pair is soon settled: what is left of a loss near 0 is rounding.
RATE = 1e-4
LOSSES = {
    "sigmoid": {},
    "smoothed": {"dpo_label_smoothing": 0.2, "dpo_beta": 0.3},
    "hinge": {"dpo_loss_type": "hinge"},
    "ipo": {"dpo_loss_type": "ipo", "dpo_beta": 0.5},
    "with the chosen": {"pref_ftx": 0.5},
}
DYNAMIC = {"no_pad_to_seq_lengths": True}


@pytest.fixture(scope="module")
def model(folder) -> Path:
    return write_tiny_hf(folder / "model", "qwen3")


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Row, Row]]:
    """One prompt with two answers each, of different lengths."""
    made = []
    for number, row in enumerate(samples(STEPS * BATCH)):
        prompt = [token for token, label in zip(row.tokens, row.labels, strict=True) if label < 0]
        made.append((row, sample(prompt, [11] * (3 + number % 5) + [2])))
    return made


@pytest.fixture(scope="module")
def prefix(folder, pairs) -> Path:
    return write_pairs(folder / "data" / "pairs", pairs)


@pytest.fixture(scope="module")
def by_hand(model, pairs):
    """The run of a loss type on ``transformers``, with its rewards; computed once."""
    runs: dict[str, tuple] = {}

    def get(name: str):
        if name not in runs:
            runs[name] = _by_hand(model, pairs, **LOSSES[name])
        return runs[name]

    return get


def _by_hand(
    folder, pairs, dpo_loss_type="sigmoid", dpo_beta=0.1, dpo_label_smoothing=0.0, pref_ftx=0.0
):
    import torch
    from transformers import AutoModelForCausalLM

    frozen = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rewards: list[list[tuple[float, float]]] = []

    def score(model, row: Row):
        found = log_probabilities(model, row)
        return found.mean() if dpo_loss_type == "ipo" else found.sum()

    def loss_of_pair(model, chosen: Row, rejected: Row):
        with torch.no_grad():
            theirs = score(frozen, chosen), score(frozen, rejected)
        good, bad = score(model, chosen) - theirs[0], score(model, rejected) - theirs[1]
        rewards[-1].append((dpo_beta * float(good.detach()), dpo_beta * float(bad.detach())))
        margin = good - bad
        if dpo_loss_type == "hinge":
            loss = torch.clamp(1 - dpo_beta * margin, min=0)
        elif dpo_loss_type == "ipo":
            loss = (margin - 1 / (2 * dpo_beta)).square()
        else:
            right = torch.sigmoid(dpo_beta * margin).log()
            wrong = torch.sigmoid(-dpo_beta * margin).log()
            loss = -(1 - dpo_label_smoothing) * right - dpo_label_smoothing * wrong
        return loss - pref_ftx * log_probabilities(model, chosen).mean()

    def loss_of(model, batch):
        rewards.append([])
        return sum(loss_of_pair(model, *pair) for pair in batch) / len(batch)

    batches = [pairs[first : first + BATCH] for first in range(0, len(pairs), BATCH)]
    return *reference_run(folder, batches, loss_of, RATE), rewards


def tune(pool, ranks: int, argv: list[str]) -> list[dict]:
    return pool(ranks).run(train, argv=argv, tool="posttrain")[-1]


@pytest.mark.parametrize(
    "layout, loss",
    grid(
        LAYOUTS,
        LOSSES,
        quick=[
            *(("one", loss) for loss in LOSSES),
            ("PP2 interleaved", "smoothed"),
            ("DP2", "ipo"),
        ],
    ),
)
def test_steps_are_those_written_by_hand(pool, model, prefix, by_hand, tmp_path, layout, loss):
    ranks, more = LAYOUTS[layout]
    save = {"save": tmp_path, "save_interval": 100, "enable_mg2hf_convert": True}
    more = more | {"lr": RATE, "min_lr": RATE}
    argv = tune_flags("dpo", model, prefix, STEPS, **save, **DYNAMIC, **LOSSES[loss], **more)
    found = tune(pool, ranks, argv)
    losses, norms, weights, rewards = by_hand(loss)
    assert [row["lm_loss"] for row in found] == pytest.approx(losses, rel=1e-5)
    assert [row["grad_norm"] for row in found] == pytest.approx(norms, rel=1e-4)
    for row, step in zip(found, rewards, strict=True):
        chosen, rejected = (sum(pair[side] for pair in step) / len(step) for side in (0, 1))
        right = sum(pair[0] > pair[1] for pair in step) / len(step)
        assert row["rewards/chosen"] == pytest.approx(chosen, rel=1e-4, abs=1e-6)
        assert row["rewards/rejected"] == pytest.approx(rejected, rel=1e-4, abs=1e-6)
        assert row["rewards/margins"] == pytest.approx(chosen - rejected, rel=1e-3, abs=1e-5)
        if row["iteration"] > 1:  # at first both are the reference, but for rounding
            assert row["rewards/accuracies"] == right
    assert_same_weights(weights_of(tmp_path / f"mg2hf_iteration{STEPS}"), weights, rel=1e-5)


def test_validation_needs_the_reference_too(pool, model, prefix):
    flags = {"split": "80,20,0", "eval_iters": 1, "eval_interval": 1, "no_shuffle": True}
    rows = tune(pool, 1, tune_flags("dpo", model, prefix, 1, lr=0, min_lr=0, **flags))
    held_out = next(row for row in rows if "validation_lm_loss" in row)
    assert held_out["validation_lm_loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert "validation_rewards/accuracies" in held_out


def test_run_goes_on_against_the_model_it_began_from(pool, model, prefix, tmp_path):
    """--auto-resume: the reference is --load, not the weights that are trained on."""
    more = {"save": tmp_path, "save_interval": 100, "auto_resume": True}
    straight = tune(pool, 1, tune_flags("dpo", model, prefix, 5))
    tune(pool, 1, tune_flags("dpo", model, prefix, 5, exit_interval=3, **more))
    resumed = tune(pool, 1, tune_flags("dpo", model, prefix, 5, **more))
    for key in ("lm_loss", "grad_norm", "rewards/margins"):
        assert [row[key] for row in resumed] == [row[key] for row in straight[3:]]
    named = {"finetune": False, "ref_model": model}
    argv = tune_flags("dpo", tmp_path, prefix, 6, **named)
    assert tune(pool, 1, argv)[0]["rewards/margins"] != 0
    with pytest.raises(RankError, match=r"is a run under way.*--ref-model"):
        tune(pool, 1, tune_flags("dpo", tmp_path, prefix, 6, finetune=False))


def test_reference_of_its_own(pool, folder, model, prefix):
    """Another model of the same shape is the reference; one of another shape is refused."""
    other = write_tiny_hf(folder / "other", "qwen3", seed=5)
    rows = tune(pool, 1, tune_flags("dpo", model, prefix, 1, ref_model=other))
    assert abs(rows[0]["rewards/margins"]) > 1e-3
    smaller = write_tiny_hf(folder / "smaller", "llama")
    with pytest.raises(RankError, match=r"--ref-model .* is another model: "):
        tune(pool, 1, tune_flags("dpo", model, prefix, 1, ref_model=smaller))
    with pytest.raises(RankError, match=r"--ref-model .* does not exist"):
        tune(pool, 1, tune_flags("dpo", model, prefix, 1, ref_model=folder / "nothing"))


def test_pair_without_a_trained_answer_adds_nothing_and_is_told(pool, model, folder, pairs):
    rejected = pairs[0][1]
    empty = pairs[1][0], Row(rejected.tokens, [IGNORE] * len(rejected.tokens), rejected.segments)
    both = write_pairs(folder / "empty" / "both", [pairs[0], empty])
    alone = write_pairs(folder / "empty" / "alone", [pairs[0]])
    argv = tune_flags("dpo", model, both, 1, global_batch_size=2)
    rows, said = pool(1).run(train_and_tell, argv=argv, tool="posttrain")[-1]
    one = tune(pool, 1, tune_flags("dpo", model, alone, 1, global_batch_size=1))
    assert rows[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-5)
    assert "1 pairs hold no token that is trained" in said
