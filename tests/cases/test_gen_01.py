"""GEN-01: batches of prompts of unequal length, at every decoding step."""

from __future__ import annotations

import pytest

from tests.unit.inference.models import PROMPTS, answers, layout_flags, reference, write_model

NEW = 20
GREEDY: dict = {}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("gen01") / "model", "llama")
    return folder, reference(folder, PROMPTS, NEW)


@pytest.mark.parametrize("cache", ["--use-kv-cache", "--no-kv-cache"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_gen_01_each_prompt_alone_in_a_batch_and_in_any_order(pool, model, cache, tensor) -> None:
    folder, expected = model
    order = [2, 0, 1]
    batches = [[(p, GREEDY)] for p in PROMPTS]
    batches += [[(p, GREEDY) for p in PROMPTS], [(PROMPTS[i], GREEDY) for i in order]]
    flags = [*layout_flags(tensor, 1), cache]
    for results in pool(tensor).run(
        answers, folder=folder, flags=flags, batches=batches, new_tokens=NEW
    ):
        *alone, together, shuffled = results
        assert [one for (one,) in alone] == expected
        assert together == expected
        assert shuffled == [expected[i] for i in order]
