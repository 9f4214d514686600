"""Tiny models with a tokenizer, their greedy answers by ``transformers``, and runs on the pool."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.data.small import byte_level
from tests.families import write_tiny_hf

VOCAB = 601
# GEN-01: 2, 9 and 30 tokens.
PROMPTS = [
    [5, 6],
    [200, 17, 33, 400, 9, 77, 310, 55, 120],
    [(7 * i * i + 11 * i + 30) % VOCAB for i in range(30)],
]


def write_model(folder: Path, family: str, **changes: Any) -> Path:
    """A tiny random model whose vocabulary does not divide over two ranks, and a tokenizer."""
    write_tiny_hf(folder, family, vocab_size=VOCAB, **changes)
    # Random weights would stop at random; tests that want an end say which token it is.
    for name in ("generation_config.json", "config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "eos_token_id": None}))
    for path in byte_level().iterdir():
        shutil.copy(path, folder)
    return folder


def reference(folder: Path, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """What ``transformers`` generates greedily from each prompt alone, without stopping."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([list(prompt)]),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        for scores in out.scores:
            best = scores[0].topk(2).values
            # A smaller margin would make the next token a matter of rounding.
            assert best[0] - best[1] > 1e-4, "choose another seed for this model"
        answers.append(out.sequences[0, len(prompt) :].tolist())
    return answers


def answers(
    rank: int,
    world: int,
    folder: Path,
    flags: Sequence[str],
    batches: Sequence[Sequence[tuple[Sequence[int], dict[str, Any]]]],
    new_tokens: int,
    score: bool = False,
) -> list[list[Any]]:
    """On the pool: the engine that the command builds, run on batches of (prompt, sampling).

    Returns:
        Per batch, per request: tokens, or (tokens, log-probabilities) with ``score``.
    """
    from mindspeed_llm.flags import parse
    from mindspeed_llm.inference.engine import Request
    from mindspeed_llm.inference.sampling import Sampling
    from mindspeed_llm.inference.setup import build_generator

    with contextlib.redirect_stdout(io.StringIO()):
        cfg = parse("inference", ["--load", str(folder), *flags])
        engine = build_generator(cfg).engine
    engine.end_tokens = frozenset()
    engine.score = score
    results = []
    for batch in batches:
        requests = [Request(p, new_tokens, Sampling(**sampling)) for p, sampling in batch]
        done = engine.generate(requests)
        results.append([(c.tokens, c.log_probabilities) if score else c.tokens for c in done])
    return results


def layout_flags(tensor: int, pipeline: int) -> list[str]:
    """Flags of a layout."""
    return [
        *("--tensor-model-parallel-size", str(tensor)),
        *("--pipeline-model-parallel-size", str(pipeline)),
    ]
