"""GEN-03: temperature 0, top-p 0 or 1, near-zero temperature, padded vocabulary rows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.inference.sampling import Sampling, candidates, choose, log_probabilities
from tests.unit.inference.models import PROMPTS, VOCAB, answers, layout_flags, write_model

SIZE = 300
TEMPERATURES = (0.0, 1e-4, 1.0)
TOP_PS = (0.0, 1e-6, 0.5, 1.0)
TOP_KS = (0, 1, SIZE + 50)


def logits(kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Peaked: one token has nearly all; flat: every token the same; rough: neither."""
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
    if kind == "flat":
        values = torch.zeros(SIZE)
    if kind == "peaked":
        values[17] = 300.0
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", ["peaked", "flat", "rough"])
def test_gen_03_grid_keeps_a_candidate_and_finite_numbers(kind, dtype) -> None:
    scores = logits(kind, dtype)
    for temperature, top_p, top_k in itertools.product(TEMPERATURES, TOP_PS, TOP_KS):
        sampling = Sampling(temperature, top_k, top_p, seed=3)
        ids, probabilities = candidates(scores, sampling)
        assert len(ids) == len(probabilities) >= 1
        assert torch.isfinite(probabilities).all()
        assert probabilities.sum().item() == pytest.approx(1.0)
        token = choose(scores, sampling, sampling.generator())
        assert token in ids.tolist()
        score = log_probabilities(scores[None], torch.tensor([token]))
        assert math.isfinite(score.item())
        if temperature == 0 or top_p == 0 or top_k == 1:
            assert sampling.greedy
            assert token == int(scores.float().argmax())
        if top_p == 1e-6 and kind != "flat":
            # In bf16 several may share the maximum.
            assert len(ids) == 1
            assert scores[ids[0]] == scores.max()


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999999, 1.0])
@pytest.mark.parametrize("top_k", [0, 5, SIZE, SIZE + 50])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_probabilities_equal_those_of_transformers(temperature, top_k, top_p) -> None:
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    scores = logits("rough", torch.float32)
    chain = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        chain.append(TopKLogitsWarper(top_k))
    chain.append(TopPLogitsWarper(top_p))
    expected = chain(torch.zeros(1, 1, dtype=torch.long), scores[None].clone())[0].softmax(-1)
    ids, probabilities = candidates(scores, Sampling(temperature, top_k, top_p))
    ours = torch.zeros(SIZE, dtype=torch.float64)
    ours[ids] = probabilities
    torch.testing.assert_close(ours.float(), expected, rtol=1e-5, atol=1e-7)


def test_draws_follow_the_probabilities() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0])
    sampling = Sampling(1.0)
    generator = sampling.generator()
    counts = torch.bincount(
        torch.tensor([choose(scores, sampling, generator) for _ in range(4000)]), minlength=4
    )
    expected = scores.softmax(-1)
    # Four standard deviations of a binomial count.
    error = 4 * (expected * (1 - expected) / 4000).sqrt()
    assert ((counts / 4000 - expected).abs() < error).all()


@pytest.mark.parametrize(
    "values",
    [
        {"top_p": 1.1},
        {"top_p": -1.0},
        {"top_p": math.nan},
        {"temperature": -0.5},
        {"temperature": math.inf},
        {"temperature": math.nan},
        {"top_k": -1},
    ],
)
def test_gen_03_out_of_range_is_refused(values) -> None:
    with pytest.raises(UserError, match=r"top-p|temperature|top-k"):
        Sampling(**values)


def test_gen_03_padded_vocabulary_rows_are_never_sampled(pool, tmp_path) -> None:
    """The padding's logits are 0; at a high temperature they would be drawn."""
    folder = write_model(tmp_path / "model", "llama")
    flags = [*layout_flags(2, 1), "--make-vocab-size-divisible-by", "512"]
    hot = [(PROMPTS[i % 3], {"temperature": 1e4, "seed": i}) for i in range(24)]
    results = pool(2).run(answers, folder=folder, flags=flags, batches=[hot], new_tokens=20)
    drawn = {token for answer in results[0][0] for token in answer}
    assert max(drawn) < VOCAB
    # 1024 rows hold 423 of padding: that none came up is no chance.
    assert len(drawn) > 300
