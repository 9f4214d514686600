"""Flags of how conversations are written as text; preprocessing and training spell them alike."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag


@dataclass(frozen=True)
class ChatFlags(Group):
    use_chat_template: bool = flag(
        False, "Use the tokenizer's own chat template: --prompt-type auto."
    )
    enable_thinking: str | None = flag(
        None,
        "An answer without thinking gets an empty block: trained (true), or as part of the prompt "
        "(false, which also takes thinking out of the data; none, which keeps it).",
        choices=("true", "false", "none"),
    )
    train_turns: str = flag(
        "all",
        "What is trained of a conversation: every answer, the last one, or each as a sample of its "
        "own with what came before it.",
        choices=("all", "last", "each"),
    )
    preserve_thinking: bool = flag(
        False,
        "Keep the thinking of earlier answers, also where the model's own template removes it.",
    )
