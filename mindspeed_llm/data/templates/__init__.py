"""Templates: how a conversation is written as text, and which part of the text is trained.

The way from a conversation to tokens::

    template = load_template(tokenizer, "qwen3", enable_thinking="true")
    rendered = template.samples(conversation)          # list[Rendered]: text and trained spans
    encoded = ChatEncoder(engine, tokenizer).encode(rendered)
    encoded.ids, encoded.labels, encoded.lengths       # flat arrays of all samples

A conversation gives one sample, or several with ``--train-turns each``. Pairs go through
``template.pair``, prompts for generation through ``template.prompt``.
"""

from mindspeed_llm.data.templates.chat_encoder import IGNORE, ChatEncoder, EncodedChats
from mindspeed_llm.data.templates.load import load_template
from mindspeed_llm.data.templates.template import Rendered, Template, TemplateError

__all__ = [
    "IGNORE",
    "ChatEncoder",
    "EncodedChats",
    "Rendered",
    "Template",
    "TemplateError",
    "load_template",
]
