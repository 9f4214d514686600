"""Do two folders hold the same model? Logits of ours against ``transformers``, in fp32.

    python -m mindspeed_llm.quickstart.check MEGATRON_OR_HF_DIR HF_DIR

prints one JSON object: the largest difference relative to the largest logit, and how often the
most likely next token is the same.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from mindspeed_llm.console import entry_point

TEXT = (
    "A generator function returns an iterator. When the value of an expression list is needed, "
    "the interpreter evaluates it from left to right and yields the result to the caller."
)


def compare_logits(ours: str, theirs: str, text: str = TEXT) -> dict[str, Any]:
    """Compare the model in ``ours`` (any checkpoint of ours) with a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse
    from mindspeed_llm.live_model import build_live_model
    from mindspeed_llm.model_source import resolve_model

    ids = AutoTokenizer.from_pretrained(theirs)(text, return_tensors="pt")["input_ids"]
    cfg = parse("inference", ["--load", ours])
    model = resolve_model(cfg, ours)
    position = distributed.initialize(cfg)
    (chunk,) = build_live_model(cfg, model, position, load_weights=True).chunks
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    with torch.no_grad():
        mine = chunk.eval()(ids, positions, None)[..., : model.shape.vocab_size]
        reference = AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.float32).eval()
        wanted = reference(ids).logits
    distributed.shutdown()
    same = (mine.argmax(-1) == wanted.argmax(-1)).float().mean()
    return {
        "tokens": ids.shape[1],
        "relative_difference": float((mine - wanted).abs().max() / wanted.abs().max()),
        "same_next_token": float(same),
    }


def main(argv: list[str]) -> int:
    """Print the comparison of two folders."""
    ours, theirs = argv
    print(json.dumps(compare_logits(ours, theirs)))
    return 0


if __name__ == "__main__":
    entry_point(main, sys.argv[1:])
