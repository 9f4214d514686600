"""A conversation, whatever format it was read from: what handlers make and templates write out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A call that an assistant makes.

    Attributes:
        name: of the function.
        arguments: by name; text that is no JSON object stays text.
        id: what the result refers to, if the data says.
    """

    name: str
    arguments: dict[str, Any] | str
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """One turn.

    Attributes:
        content: the text; "" for a turn that only calls tools.
        reasoning: the thinking before the answer, without its marks; None for none.
        tool_calls: what an assistant calls after ``content``.
        tool_call_id, name: of a tool's result, if the data says.
        trained: whether the loss is taken on it; only an assistant's turn can be.
    """

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    trained: bool = True


@dataclass(frozen=True)
class Conversation:
    """Turns in order, a system turn first if there is one.

    Attributes:
        tools: JSON schemas of the functions the assistant may call, as given.
        extra: further columns that the user asked to carry along.
    """

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """A conversation that ends with a user's turn, and a better and a worse answer to it."""

    prompt: Conversation
    chosen: Message
    rejected: Message
