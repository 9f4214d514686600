"""What tells the template that data was written with from others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.templates import Template, TemplateError

SEARCH = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
PROBES = (
    Conversation((Message("user", "a"), Message("assistant", "b"))),
    Conversation(
        (
            Message("system", "s"),
            Message("user", "a"),
            Message("assistant", "b", reasoning="r"),
            Message("user", "c"),
            Message("assistant", "d", reasoning="r"),
        )
    ),
    Conversation(
        (
            Message("user", "a"),
            Message("assistant", "", tool_calls=(ToolCall("find", {"x": 1}),)),
            Message("tool", "t"),
            Message("assistant", "b"),
        ),
        (SEARCH,),
    ),
)


def template_note(template: Template) -> dict[str, str]:
    """A template's name, and a hash of what it writes for a few conversations."""
    digest = hashlib.sha256()
    for probe in PROBES:
        try:
            texts: Sequence[object] = [(one.text, one.spans) for one in template.samples(probe)]
        except TemplateError as error:
            texts = [str(error)]
        digest.update(repr(texts).encode())
    return {"name": template.name, "sha256": digest.hexdigest()}
