"""A real model: SmolLM2's logits and greedy tokens are those of ``transformers``."""

from __future__ import annotations

import pytest
import torch

from tests.unit.inference.models import answers, layout_flags

PROMPTS = ("The capital of France is", "def fibonacci(n):")
NEW = 64


@pytest.fixture(scope="session")
def smollm2():
    from mindspeed.errors import UserError
    from mindspeed_llm.quickstart.smollm2 import prepare

    try:
        return prepare()
    except UserError as error:
        pytest.skip(str(error))


def logits(rank: int, world: int, folder, prompt: list[int]):
    """On the pool: logits of every position by Megatron's own forward."""
    from mindspeed_llm.flags import parse
    from mindspeed_llm.inference.setup import build_generator

    engine = build_generator(parse("inference", ["--load", str(folder)])).engine
    return engine.logits(prompt).numpy()


@pytest.mark.slow
def test_smollm2_tokens_and_logits_equal_those_of_transformers(pool, smollm2) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    batches = [[(prompt, {}) for prompt in prompts]]
    ours = pool(2).run(
        answers, folder=smollm2, flags=layout_flags(1, 2), batches=batches, new_tokens=NEW
    )[0][0]
    for prompt, tokens in zip(prompts, ours, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([prompt + tokens[:-1]])).logits[0]
        found = torch.from_numpy(
            pool(1).run(logits, folder=smollm2, prompt=prompt + tokens[:-1])[0]
        )
        assert (found - expected).abs().max() <= 1e-3
        best = expected[len(prompt) - 1 :].topk(2)
        for position, token in enumerate(tokens):
            margin = best.values[position, 0] - best.values[position, 1]
            if token != best.indices[position, 0] and margin > 1e-4:
                pytest.fail(f"token {position}: {token}, margin {margin}")
