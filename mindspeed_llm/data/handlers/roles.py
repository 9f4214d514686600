"""The order of turns: which conversations are taken as they are, mended without loss, or left out.

====================================================  =============================================
shape                                                 outcome
====================================================  =============================================
[system] (user, assistant)+                           taken
calls, then tool results, then assistant              taken: ``user (assistant tool+)* assistant``
turns after the last assistant's (an odd count)       those turns are cut off, which no loss is
                                                      taken on; counted as "unanswered turns cut"
no assistant's turn                                   left out: "no answer"
assistant (or tool) before any user                   left out: "does not begin with a user"
two turns of one role                                 left out: "a role speaks twice"
a tool's result that no call came before              left out: "tool result without a call"
system later than the first turn, or twice            left out: "system not first"
user or assistant without text (and calls)            left out: "empty turn"
no turn at all                                        left out: "empty row"
====================================================  =============================================

A role that ``--map-keys`` does not know is no matter of order: the record is malformed.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspeed_llm.data.conversation import Message
from mindspeed_llm.data.handlers.faults import OddShape

UNANSWERED = "unanswered turns cut"
NO_ANSWER = "no answer"
NOT_USER_FIRST = "does not begin with a user"
TWICE = "a role speaks twice"
NO_CALL = "tool result without a call"
SYSTEM_LATE = "system not first"
EMPTY_TURN = "empty turn"
EMPTY_ROW = "empty row"

# Who may speak after whom; "" is the begin.
AFTER: dict[str, frozenset[str]] = {
    "": frozenset({"user"}),
    "user": frozenset({"assistant"}),
    "assistant": frozenset({"user", "tool"}),
    "tool": frozenset({"assistant", "tool"}),
}


def ordered(messages: Sequence[Message]) -> tuple[tuple[Message, ...], int]:
    """The turns up to the last answer, system first; and how many were cut off after it.

    Raises:
        OddShape: see the table above.
    """
    if not messages:
        raise OddShape(EMPTY_ROW)
    turns = _in_order(messages)
    last = max((i for i, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    if last < 0:
        raise OddShape(NO_ANSWER)
    return tuple(turns[: last + 1]), len(turns) - last - 1


def prompt_of(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Turns that end with a user's (or a tool's), to be answered.

    Raises:
        OddShape: see the table above; an assistant's turn at the end counts as speaking twice.
    """
    if not messages:
        raise OddShape(EMPTY_ROW)
    turns = _in_order(messages)
    if not turns or turns[-1].role == "system":
        raise OddShape(NOT_USER_FIRST)
    if turns[-1].role == "assistant":
        raise OddShape(TWICE)
    return tuple(turns)


def _in_order(messages: Sequence[Message]) -> list[Message]:
    """Check the order; an empty system turn at the begin is left out."""
    turns = list(messages)
    if turns[0].role == "system" and not turns[0].content.strip():
        del turns[0]
    before = ""
    for index, turn in enumerate(turns):
        if turn.role == "system":
            if index:
                raise OddShape(SYSTEM_LATE)
            continue
        if turn.role not in AFTER[before]:
            raise OddShape(_why(before, turn.role))
        if turn.role == "tool" and before == "assistant" and not turns[index - 1].tool_calls:
            raise OddShape(NO_CALL)
        if turn.role != "tool" and not _says_something(turn):
            raise OddShape(EMPTY_TURN)
        before = turn.role
    return turns


def _why(before: str, role: str) -> str:
    if not before:
        return NOT_USER_FIRST
    return NO_CALL if role == "tool" else TWICE


def _says_something(turn: Message) -> bool:
    return bool(turn.content.strip() or turn.tool_calls)
