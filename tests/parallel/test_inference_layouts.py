"""Greedy answers against ``transformers`` for every family and layout, and equal draws."""

from __future__ import annotations

import pytest
import torch

from tests.unit.inference.models import PROMPTS, answers, layout_flags, reference, write_model

NEW = 12
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "llama": {},
    "llama3-tied": {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    "llama-one-kv-head": {"num_key_value_heads": 1},
    "llama-three-heads": {
        "hidden_size": 48,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 16,
    },
    "qwen2": {},
    "qwen3": {},
    "qwen3-tied": {"tie_word_embeddings": True},
}
GREEDY: dict = {}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def get(name: str):
        if name not in made:
            folder = tmp_path_factory.mktemp(name) / "model"
            write_model(folder, name.split("-")[0].replace("llama3", "llama"), **MODELS[name])
            made[name] = folder, reference(folder, PROMPTS, NEW)
        return made[name]

    return get


def greedy(pool, folder, flags, ranks) -> list:
    batches = [[(prompt, GREEDY) for prompt in PROMPTS]]
    results = pool(ranks).run(answers, folder=folder, flags=flags, batches=batches, new_tokens=NEW)
    assert all(one == results[0] for one in results), "ranks disagree"
    return results[0][0]


# Quick: what differs between layouts. Slow: the rest of the grid.
QUICK = {
    ("llama", "pp2"),
    ("llama3-tied", "pp2"),
    ("llama-one-kv-head", "tp2"),
    ("llama-three-heads", "tp2"),
    ("qwen2", "tp2"),
    ("qwen3", "tp1"),
}
LAYOUTS = {"tp1": (1, 1), "tp2": (2, 1), "pp2": (1, 2)}
GRID = [
    pytest.param(
        name,
        layout,
        id=f"{name}-{layout}",
        marks=[] if (name, layout) in QUICK else [pytest.mark.slow],
    )
    for name in MODELS
    for layout in LAYOUTS
]


@pytest.mark.parametrize(("name", "layout"), GRID)
def test_greedy_tokens_equal_those_of_transformers(pool, models, name, layout) -> None:
    folder, expected = models(name)
    tensor, pipeline = LAYOUTS[layout]
    assert greedy(pool, folder, layout_flags(tensor, pipeline), tensor * pipeline) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-one-kv-head", "qwen2", "qwen3-tied"])
def test_greedy_tokens_at_tp2_pp2(pool, models, name) -> None:
    folder, expected = models(name)
    assert greedy(pool, folder, layout_flags(2, 2), 4) == expected


@pytest.mark.parametrize(
    "flags",
    [
        ["--num-layer-list", "1,3"],
        ["--no-kv-cache"],
    ],
    ids=["uneven", "without-cache"],
)
def test_pipeline_variants(pool, models, flags) -> None:
    folder, expected = models("llama")
    assert greedy(pool, folder, [*layout_flags(1, 2), *flags], 2) == expected


def test_draws_do_not_depend_on_layout_or_batch(pool, models) -> None:
    folder, _ = models("qwen3")
    requests = [
        (prompt, {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "seed": seed})
        for prompt, seed in zip(PROMPTS, (3, 4, 5), strict=True)
    ]
    batches = [requests, requests[::-1], *([request] for request in requests)]
    seen = []
    for tensor, pipeline in ((1, 1), (2, 1), (1, 2)):
        together, turned, *alone = pool(tensor * pipeline).run(
            answers,
            folder=folder,
            flags=layout_flags(tensor, pipeline),
            batches=batches,
            new_tokens=NEW,
        )[-1]
        assert together == turned[::-1] == [one for (one,) in alone]
        seen.append(together)
    assert seen[0] == seen[1] == seen[2]
    assert len({tuple(answer) for answer in seen[0]}) == 3


def test_log_probabilities_equal_those_of_transformers(pool, models) -> None:
    from transformers import AutoModelForCausalLM

    folder, _ = models("qwen2")
    batches = [[(prompt, {"temperature": 1.0, "seed": 1}) for prompt in PROMPTS]]
    results = pool(2).run(
        answers,
        folder=folder,
        flags=layout_flags(2, 1),
        batches=batches,
        new_tokens=NEW,
        score=True,
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for prompt, (tokens, scores) in zip(PROMPTS, results[0][0], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(scores), expected, rtol=1e-4, atol=1e-4)
