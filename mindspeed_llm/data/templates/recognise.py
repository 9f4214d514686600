"""Recognise the tokenizer's own template as one of the named ones, which are many times faster.

A named template stands in for the tokenizer's own on a kind of conversation (plain, with tools,
with thinking) when both give the same text, spans and prompt on probes of that kind. Templates
decide by role and order, which the probes vary, and by strings they look for in a text: a
conversation that holds one of these strings, or an odd order of roles, is always written by the
template itself; and so is one of every few hundred besides, to compare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Flag

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.templates.definition import built_in
from mindspeed_llm.data.templates.named import NamedTemplate
from mindspeed_llm.data.templates.template import Rendered, TemplateError
from mindspeed_llm.data.templates.thinking import CLOSE, OPEN
from mindspeed_llm.data.tokenizer import Tokenizer

CHECK_EVERY = 512


class Kind(Flag):
    """What a conversation holds besides questions and answers."""

    PLAIN = 0
    TOOLS = 1
    THINKING = 2


KINDS = (Kind.PLAIN, Kind.TOOLS, Kind.THINKING, Kind.TOOLS | Kind.THINKING)


class FastForm:
    """A named template that writes some kinds of conversation as the tokenizer's own does.

    Args:
        named: the template.
        kinds: where it agrees.
        tested: strings that the tokenizer's own template looks for.
    """

    def __init__(self, named: NamedTemplate, kinds: frozenset[Kind], tested: set[str]) -> None:
        self.name = named.name
        self._named = named
        self._kinds = kinds
        if Kind.THINKING in kinds:
            tested = tested - {OPEN, CLOSE}
        self._tested = re.compile("|".join(map(re.escape, sorted(tested))) or "(?!)")
        self._count = 0

    def render(
        self, conversation: Conversation, slow: Callable[[Conversation], Rendered]
    ) -> Rendered | None:
        """The conversation, or None if only the template itself can be trusted with it.

        Raises:
            TemplateError: as the template would.
            UserError: the two turned out to differ.
        """
        if kind_of(conversation) not in self._kinds or any(
            self._tested.search(message.content) for message in conversation.messages
        ):
            return None
        rendered = self._named.render(conversation)
        self._count += 1
        if self._count % CHECK_EVERY == 1 and slow(conversation) != rendered:
            raise UserError(
                f"The tokenizer's chat template writes a conversation otherwise than {self.name}, "
                f"which it was taken for; it begins {rendered.text[:60]!r}. Use --prompt-type "
                f"{self.name} if that is what you want, and report the tokenizer."
            )
        return rendered


def recognise(
    tokenizer: Tokenizer,
    tested: set[str],
    slow: Callable[[Conversation], Rendered],
    enable_thinking: str,
    preserve_thinking: bool,
) -> FastForm | None:
    """The named template that agrees on the most kinds of conversation, if one agrees on any.

    Args:
        tokenizer: the tokenizer.
        tested: strings that its template looks for in texts.
        slow: its template.
        enable_thinking, preserve_thinking: as the flags.
    """
    expected = {kind: [(one, _outcome(slow, one)) for one in probes(kind)] for kind in KINDS}
    best: tuple[int, NamedTemplate, frozenset[Kind]] | None = None
    for definition in built_in().by_name.values():
        try:
            named = NamedTemplate(
                definition,
                tokenizer,
                enable_thinking,
                preserve_thinking=preserve_thinking and definition.thinking is not None,
            )
        except UserError:
            continue
        kinds = frozenset(
            kind
            for kind, pairs in expected.items()
            if any(wanted for _, wanted in pairs)
            and all(_outcome(named.render, one) == wanted for one, wanted in pairs)
        )
        if Kind.PLAIN in kinds and (best is None or len(kinds) > best[0]):
            best = len(kinds), named, kinds
    return FastForm(best[1], best[2], tested) if best else None


def kind_of(conversation: Conversation) -> Kind | None:
    """What a conversation holds; None for an order of roles that the probes do not cover."""
    messages = conversation.messages
    kind = Kind.TOOLS if conversation.tools else Kind.PLAIN
    before = "start"
    for message in messages:
        if message.role not in FOLLOWS[before]:
            return None
        if not message.tool_calls and not message.content.strip():
            return None
        before = message.role
        if message.tool_calls:
            kind |= Kind.TOOLS
            before = "call"
        if message.reasoning is not None or (before == "assistant" and CLOSE in message.content):
            kind |= Kind.THINKING
    return kind if before in ("assistant", "call") else None


FOLLOWS = {
    "start": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "call": ("tool",),
    "tool": ("tool", "assistant"),
}


def _outcome(
    render: Callable[[Conversation], Rendered], conversation: Conversation
) -> Rendered | None:
    try:
        return render(conversation)
    except TemplateError:
        return None


TEXTS = ("a", " b \n", "\n\n c", "d\n", "<e>", "é漢😀", "f'\"&{}\\", "{content} {{x}}", "\tg", "##")
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "é <b> 'x'",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
CALLS = (
    ToolCall("f", {"a": "é <x> \"y\" 'z'", "b": [1, 2.5, None, True]}, id="call00001"),
    ToolCall("g", {}, id="call00002"),
    ToolCall("h", {"n": {"m": "\n"}}, id="call00003"),
)


def probes(kind: Kind) -> Iterator[Conversation]:
    """Conversations of a kind: with and without a system text, of one and of several turns."""
    number = 0

    def text() -> str:
        nonlocal number
        number += 1
        return TEXTS[number % len(TEXTS)]

    def answer(turn: int, calls: tuple[ToolCall, ...] = (), content: bool = True) -> Message:
        thought: str | None = None
        written = text() if content else ""
        if Kind.THINKING in kind and turn % 3:
            thought = f"\n{text()}\n"
            if turn % 3 == 2 and content:
                written, thought = f"{OPEN}\n{text()}\n{CLOSE}\n\n{written}", None
        return Message("assistant", written, thought, calls)

    for turns in (1, 2, 3, 5):
        for system in (False, True):
            for chained in range(4) if Kind.TOOLS in kind else (0,):
                messages = [Message("system", text())] if system else []
                for turn in range(turns):
                    messages.append(Message("user", text()))
                    for call in range(chained if turn % 2 == 0 else 0):
                        calls = CALLS[: call + 1]
                        messages.append(answer(turn + call + 1, calls, content=call != 1))
                        messages += [
                            Message("tool", text(), tool_call_id=one.id, name=one.name)
                            for one in calls
                        ]
                    messages.append(answer(turn + turns))
                tools = (TOOL, TOOL) if Kind.TOOLS in kind and turns != 2 else ()
                conversation = Conversation(tuple(messages), tools)
                if kind_of(conversation) == kind:
                    yield conversation
