"""Choose the template that the flags name."""

from __future__ import annotations

from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.data.templates.definition import load_definitions
from mindspeed_llm.data.templates.named import NamedTemplate
from mindspeed_llm.data.templates.template import Template
from mindspeed_llm.data.tokenizer import Tokenizer

AUTO = "auto"


def load_template(
    tokenizer: Tokenizer,
    prompt_type: str | None = None,
    prompt_type_path: str | Path | None = None,
    enable_thinking: str | None = None,
    train_turns: str = "all",
    preserve_thinking: bool = False,
    use_chat_template: bool = False,
) -> Template:
    """The template for ``--prompt-type``.

    Args:
        tokenizer: whose special tokens, and own template, are used.
        prompt_type: a name, or "auto" for the tokenizer's own template.
        prompt_type_path: a file of further named templates.
        enable_thinking: "true", "false" or "none" (as None).
        train_turns: "all", "last" or "each".
        preserve_thinking: keep the thinking of earlier answers.
        use_chat_template: as the prompt type "auto".

    Raises:
        UserError: an unknown name, a broken file, a template that does not fit the tokenizer, or a
            tokenizer without a template of its own.
    """
    if use_chat_template and prompt_type not in (None, AUTO):
        raise UserError(
            f"--use-chat-template and --prompt-type {prompt_type} name two templates; give one."
        )
    if prompt_type is None and not use_chat_template:
        raise UserError(
            "Conversations need a template: --prompt-type auto takes the tokenizer's own, "
            "--prompt-type NAME one of docs/templates.md."
        )
    thinking = enable_thinking or "none"
    if use_chat_template or prompt_type == AUTO:
        from mindspeed_llm.data.templates.auto import AutoTemplate

        return AutoTemplate(tokenizer, thinking, train_turns, preserve_thinking)
    path = Path(prompt_type_path).expanduser() if prompt_type_path else None
    definition = load_definitions(path).get(str(prompt_type))
    return NamedTemplate(definition, tokenizer, thinking, train_turns, preserve_thinking)
