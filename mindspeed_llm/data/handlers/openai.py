"""OpenAI's chat format, with tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mindspeed_llm.data.conversation import Message
from mindspeed_llm.data.handlers.base import as_list, as_text
from mindspeed_llm.data.handlers.faults import Malformed
from mindspeed_llm.data.handlers.sharegpt import SharegptStyleInstructionHandler, call_of
from mindspeed_llm.data.readers.records import json_kind


class OpenAIInstructionHandler(SharegptStyleInstructionHandler):
    """``{"messages": [{"role": str, "content": str?, ...}, ...], "tools": [...]?}``

    Roles are system (or developer), user, assistant and tool. An assistant's turn may have
    ``tool_calls`` (``[{"id", "function": {"name", "arguments"}}]``, arguments as an object or its
    JSON) and ``reasoning_content`` (or ``reasoning``); a tool's turn ``tool_call_id`` and ``name``.
    ``content`` may be a list of ``{"type": "text", "text": str}`` parts, which are joined.
    ``"trained": false`` or ``"weight": 0`` on an assistant's turn takes no loss on it.
    """

    defaults: ClassVar[Mapping[str, str]] = {"messages": "messages", "system": "", "tools": "tools"}
    default_tags: ClassVar[Mapping[str, str]] = {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "observation_tag": "tool",
        "system_tag": "system",
        "function_tag": "",
    }

    def turn(self, turn: Any, where: str) -> Message:
        """One turn."""
        if not isinstance(turn, dict):
            raise Malformed(f'"{where}" holds {json_kind(turn)} where a turn should be')
        role_tag, content_tag = self.tags["role_tag"], self.tags["content_tag"]
        if turn.get(role_tag) == "developer" and "developer" not in self.roles:
            turn = {**turn, role_tag: self.tags["system_tag"]}
        content = turn.get(content_tag)
        if isinstance(content, list):
            turn = {**turn, content_tag: text_of_parts(content, content_tag)}
        message = super().turn(turn, where)
        if message.role == "assistant":
            reasoning = turn.get("reasoning_content") or turn.get("reasoning")
            calls = as_list(turn.get("tool_calls"), "tool_calls")
            trained = turn.get("trained", True) is not False and turn.get("weight") != 0
            return Message(
                message.role,
                message.content,
                reasoning=as_text(reasoning, "reasoning_content") or None,
                tool_calls=(*message.tool_calls, *map(call_of, calls)),
                trained=trained,
            )
        if message.role == "tool":
            return Message(
                message.role,
                message.content,
                tool_call_id=as_text(turn.get("tool_call_id"), "tool_call_id") or None,
                name=as_text(turn.get("name"), "name") or None,
            )
        return message


def text_of_parts(parts: list[Any], where: str) -> str:
    """Join the texts of a content given in parts.

    Raises:
        Malformed: a part is no text (a picture ...).
    """
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else None
        if isinstance(part, dict) and part.get("type", "text") == "text":
            text = part.get("text")
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else json_kind(part)
            raise Malformed(f'"{where}" has a part that is no text ({kind})')
        texts.append(text)
    return "".join(texts)


class HunyuanInstructionHandler(OpenAIInstructionHandler):
    """The same, written with the tokenizer's own template unless ``--prompt-type`` is given."""

    prompt_type = "auto"
