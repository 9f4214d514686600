"""Choose the template that the flags name."""

from __future__ import annotations

from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation
from mindspeed_llm.data.templates.template import Rendered, Template
from mindspeed_llm.data.tokenizer import Tokenizer


def load_template(
    tokenizer: Tokenizer,
    prompt_type: str | None = None,
    prompt_type_path: Path | None = None,
    enable_thinking: str | None = None,
    history: str = "template",
) -> Template:
    """The template for ``--prompt-type``.

    Args:
        tokenizer: whose special tokens, and own template, are used.
        prompt_type: a name, or "auto" for the tokenizer's own template.
        prompt_type_path: a file of further named templates.
        enable_thinking: "true", "false" or "none" (as None).
        history: one of :data:`~mindspeed_llm.data.templates.template.HISTORY`.

    Raises:
        UserError: an unknown name, a broken file, or a tokenizer without a template of its own.
    """
    if prompt_type != "chatml":
        raise UserError(f"--prompt-type {prompt_type}: not there yet; there is: chatml.")
    return _Chatml(history)


class _Chatml(Template):
    name = "chatml"
    stop = ("<|im_end|>",)

    def __init__(self, history: str) -> None:
        self.history = history

    def render(self, conversation: Conversation) -> Rendered:
        text = ""
        spans = []
        for message in conversation.messages:
            text += f"<|im_start|>{message.role}\n"
            start = len(text)
            text += f"{message.content}<|im_end|>"
            if message.role == "assistant" and message.trained:
                spans.append((start, len(text)))
            text += "\n"
        return Rendered(text, tuple(spans))

    def prompt(self, conversation: Conversation) -> str:
        return self.render(conversation).text + "<|im_start|>assistant\n"
