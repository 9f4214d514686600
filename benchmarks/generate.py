"""Decoding at batch 1 against ``transformers.generate``: the same model, prompt and threads.

    python benchmarks/generate.py [--model HF_DIR] [--tokens 64] [--rounds 5] [--threads 2]

Runs of the two alternate, so that both meet the same machine; the line at the end gives the median
of the rounds' ratios. Bar: at least 1.3 (fp32, SmolLM2-135M, 2 threads). Without ``--model`` the
quickstart's SmolLM2 is used.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

PROMPT = "The capital of France is"
BAR = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="Hugging Face folder")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("MINDSPEED_DEVICE", "cpu")
    folder = options.model or _smollm2()
    ours, theirs = _ours(folder, options.tokens), _theirs(folder, options.tokens)
    _compare(ours, theirs, options.tokens, options.rounds)


def _smollm2() -> str:
    from mindspeed_llm.quickstart.smollm2 import prepare

    return str(prepare())


def _ours(folder: str, tokens: int) -> Callable[[], list[int]]:
    from mindspeed_llm.flags import parse
    from mindspeed_llm.inference.engine import Request
    from mindspeed_llm.inference.setup import build_generator

    generator = build_generator(parse("inference", ["--load", folder]))
    # Both sides decode the same number of tokens.
    generator.engine.end_tokens = frozenset()
    request = Request(generator.tokenizer.encode(PROMPT), tokens)
    return lambda: generator.engine.generate([request])[0].tokens


def _theirs(folder: str, tokens: int) -> Callable[[], list[int]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt")["input_ids"]

    def generate() -> list[int]:
        with torch.inference_mode():
            out = model.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return out[0, ids.shape[1] :].tolist()

    return generate


def _compare(
    ours: Callable[[], list[int]], theirs: Callable[[], list[int]], tokens: int, rounds: int
) -> None:
    same = ours() == theirs()
    pairs = []
    for number in range(rounds):
        pair = tokens / _seconds(ours), tokens / _seconds(theirs)
        pairs.append(pair)
        print(f"round {number + 1}: {pair[0]:.1f} against {pair[1]:.1f} tokens/s", flush=True)
    ratio = statistics.median(mine / other for mine, other in pairs)
    best = [max(values) for values in zip(*pairs, strict=True)]
    print(
        f"decode batch 1: {ratio:.2f}x transformers.generate (bar {BAR}); best "
        f"{best[0]:.1f} against {best[1]:.1f} tokens/s; "
        f"tokens {'equal' if same else 'DIFFER'}"
    )


def _seconds(run: Callable[[], list[int]]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
