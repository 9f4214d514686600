"""Handlers of lists of turns, each with a role and a text under names that ``--map-keys`` sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message, Pair, Role, ToolCall
from mindspeed_llm.data.handlers.base import (
    Handler,
    as_list,
    as_text,
    as_tools,
    check_names,
    parse_map_keys,
)
from mindspeed_llm.data.handlers.faults import Malformed
from mindspeed_llm.data.handlers.roles import prompt_of
from mindspeed_llm.data.readers.records import json_kind

TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}


class SharegptStyleInstructionHandler(Handler):
    """``{"conversations": [{"from": "human", "value": str}, {"from": "gpt", "value": str}, ...]}``

    Roles are human, gpt, system, observation (a tool's result) and function_call (a text with the
    JSON of a call ``{"name", "arguments"}`` or of a list of them); optional columns ``system``
    (which a system turn in the list overrules) and ``tools`` (a list of schemas, or its JSON).
    ``--map-keys '{"messages": ..., "system": ..., "tools": ..., "tags": {"role_tag": ...,
    "content_tag": ..., "user_tag": ..., "assistant_tag": ..., "system_tag": ...,
    "observation_tag": ..., "function_tag": ...}}'`` names others.
    """

    defaults: ClassVar[Mapping[str, str]] = {
        "messages": "conversations",
        "system": "system",
        "tools": "tools",
    }
    required: ClassVar[Sequence[str]] = ("messages",)
    default_tags: ClassVar[Mapping[str, str]] = TAGS

    def __init__(self, map_keys: str | None = None, additional: Sequence[str] = ()) -> None:
        known = {**self.defaults, "tags": {}}
        given = parse_map_keys(map_keys, known, type(self).__name__)
        tags = check_names(given.pop("tags", None) or {}, self.default_tags, '--map-keys "tags"')
        super().__init__(orjson.dumps(given).decode(), additional)
        self.tags = {**self.default_tags, **tags}
        self.roles = self._roles()

    def _roles(self) -> dict[str, Role | None]:
        """What each name of a role stands for; None for a call that is a turn of its own."""
        names: dict[str, Role | None] = {
            "user_tag": "user",
            "assistant_tag": "assistant",
            "observation_tag": "tool",
            "function_tag": None,
            "system_tag": "system",
        }
        roles = {self.tags[name]: role for name, role in names.items() if self.tags.get(name)}
        if len(roles) < sum(bool(self.tags.get(name)) for name in names):
            raise UserError('--map-keys "tags": two roles have the same name.')
        return roles

    def turns(self, record: Mapping[str, Any]) -> list[Message]:
        """The turns of a record, the system column's text first."""
        column = self.columns["messages"]
        messages = [
            self.turn(turn, column) for turn in as_list(self.value(record, "messages"), column)
        ]
        system = self.text(record, "system")
        if system and messages and messages[0].role != "system":
            messages.insert(0, Message("system", system))
        return messages

    def turn(self, turn: Any, where: str) -> Message:
        """One turn."""
        if not isinstance(turn, dict):
            raise Malformed(f'"{where}" holds {json_kind(turn)} where a turn should be')
        role_tag, content_tag = self.tags["role_tag"], self.tags["content_tag"]
        name = turn.get(role_tag)
        if not isinstance(name, str) or name not in self.roles:
            known = ", ".join(self.roles)
            raise Malformed(f'a turn has the role ("{role_tag}") {name!r}; known are: {known}')
        role = self.roles[name]
        content = as_text(turn.get(content_tag), content_tag)
        if role is None:
            return Message("assistant", "", tool_calls=calls_in(content, content_tag))
        return Message(role, content)

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """One conversation."""
        return self.conversation(record, self.answered(self.turns(record)))

    def conversation(
        self, record: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> Conversation:
        """Turns with the record's tools and further columns."""
        tools = as_tools(self.value(record, "tools"), self.columns["tools"])
        return Conversation(messages, tools, self.extra(record))


def calls_in(content: str, where: str) -> tuple[ToolCall, ...]:
    """The calls that a text holds as JSON: one, or a list of them.

    Raises:
        Malformed: it holds something else.
    """
    try:
        value = orjson.loads(content)
    except ValueError:
        raise Malformed(f'"{where}" of a function call holds no JSON') from None
    return tuple(call_of(call) for call in (value if isinstance(value, list) else [value]))


def call_of(call: Any) -> ToolCall:
    """A call: ``{"name", "arguments"}``, or OpenAI's ``{"id", "function": {"name", "arguments"}}``.

    Raises:
        Malformed: it is not of this form.
    """
    inner = call.get("function") if isinstance(call, dict) and call.get("function") else call
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise Malformed('a tool call has no "name"')
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = orjson.loads(arguments)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, (dict, str)):
        raise Malformed(f'the "arguments" of a tool call are {json_kind(arguments)}')
    number = call.get("id")
    return ToolCall(inner["name"], arguments, number if isinstance(number, str) else None)


class SharegptStylePairwiseHandler(SharegptStyleInstructionHandler):
    """The same with two answers: ``{"conversations": [...], "chosen": turn, "rejected": turn}``

    ``conversations`` ends with a user's turn. Either answer is a turn ``{"from": "gpt", "value"}``,
    or a text.
    """

    kind = "pairwise"
    defaults: ClassVar[Mapping[str, str]] = {
        **SharegptStyleInstructionHandler.defaults,
        "chosen": "chosen",
        "rejected": "rejected",
    }
    required: ClassVar[Sequence[str]] = ("messages", "chosen", "rejected")

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """A prompt and two answers."""
        prompt = self.conversation(record, prompt_of(self.turns(record)))
        chosen, rejected = (self.answer(record, name) for name in ("chosen", "rejected"))
        for answer in (chosen, rejected):
            self.answered([*prompt.messages, answer])
        return Pair(prompt, chosen, rejected)

    def answer(self, record: Mapping[str, Any], name: str) -> Message:
        """One of the answers."""
        value, column = self.value(record, name), self.columns[name]
        if value is None or isinstance(value, str):
            return Message("assistant", as_text(value, column))
        answer = self.turn(value, column)
        if answer.role != "assistant":
            raise Malformed(f'"{column}" is a turn of the {answer.role}, not of the assistant')
        return answer


class R1SharegptStyleInstructionHandler(SharegptStyleInstructionHandler):
    """Turns for reinforcement learning: the prompt, and the last answer as ``labels``.

    ``--dataset-additional-keys`` names columns that are tokenized into data sets of their own.
    """

    kind = "prompt"

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """The turns to answer; the answer among the extra values."""
        *turns, answer = self.answered(self.turns(record))
        prompt = self.conversation(record, prompt_of(turns))
        prompt.extra["labels"] = answer.content
        return prompt
