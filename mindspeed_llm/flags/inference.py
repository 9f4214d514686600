"""Flags of ``inference.py``."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag
from mindspeed_llm.flags.status import neutral, part_of, unsupported

CHAT = "chat"
BEAMS = "beam search"


@dataclass(frozen=True)
class InferenceFlags(Group):
    title = "generation"

    prompt: tuple[str, ...] | None = flag(
        None,
        "One or more prompts; standard input is read when left out.",
        nargs="+",
        repeatable=True,
    )
    stream: bool = flag(False, "Print tokens as they come.")
    task: tuple[str, ...] | None = flag(
        None,
        "greedy or do_sample; with --temperature, --top-k or --top-p it samples, else greedy.",
        nargs="*",
        choices=("greedy", "do_sample"),
        refused={
            "beam_search": BEAMS,
            "beam_search_with_sampling": BEAMS,
            "chat": CHAT,
        },
    )
    max_new_tokens: int = flag(128, "Most tokens to generate.", at_least=1)
    max_length: int = flag(
        256,
        "Most tokens of prompt and answer together.",
        at_least=1,
        effect=neutral("--max-new-tokens bounds the answer"),
    )
    temperature: float = flag(0.7, "Sampling temperature; 0 is greedy.", at_least=0)
    top_k: int = flag(50, "Sample among the k likeliest tokens; 0: all.", at_least=0)
    top_p: float = flag(
        0.95,
        "Sample among the likeliest tokens of this total probability; 1: all, 0: greedy.",
        at_least=0,
        at_most=1,
    )
    use_kv_cache: bool = flag(
        True,
        "Keep keys and values of earlier tokens.",
        spellings=("--use-kv-cache",),
        off=("--no-kv-cache",),
    )
    add_eos_token: tuple[str, ...] | None = flag(None, "More tokens that end an answer.", nargs="+")
    hf_chat_template: bool = flag(
        False, "Use the tokenizer's chat template.", effect=unsupported(CHAT)
    )
    history_turns: int = flag(3, "Turns a chat remembers.", effect=part_of("hf_chat_template"))
