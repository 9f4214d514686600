"""Find the assistant's turns in the text of a chat template.

A conversation is rendered a second time with marks (private code points) inside the texts of its
turns. Without the marks that must be the first text again, which tells where every turn stands
there, however the template rewrites earlier turns (Qwen3 drops their thinking) and whatever it
trims; a mark that is missing tells that the template drops a turn. Before a turn's text stands
what opens it, behind it the token that ends it: both are learnt from probes when the template is
loaded. What cannot be told for certain is an error, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message
from mindspeed_llm.data.templates.jinja import CALL, PROBE, JinjaText
from mindspeed_llm.data.templates.template import TemplateError
from mindspeed_llm.data.templates.thinking import split_thinking
from mindspeed_llm.data.tokenizer import Tokenizer

# Marks of a turn: FIRST + number, where its text begins; LAST where it ends; THOUGHT, CALLED.
FIRST, LAST, THOUGHT, CALLED = "\ue0e0", "\ue0e1", "\ue0e2", "\ue0e3"
MARKS = re.compile("[\ue0e0-\ue0e3]")


@dataclass
class Turn:
    """Where the marks of a turn stand, in the text without marks; -1: there is none.

    Attributes:
        first: of its thinking, text or calls, the first that is written.
        last: where its text ends, or its last call's name begins.
    """

    first: int = -1
    last: int = -1


class Locator:
    """Finds turns.

    Args:
        text: the template.
        tokenizer: whose added tokens can open and end turns.

    Attributes:
        ends: the tokens that end a turn, the usual one first.
        final: by whether the turn calls tools: what must be added behind the last turn, so that it
            has an end ("" where the template writes one).
        between: whether a turn has an end where further turns follow.
        empty: the marks of thinking with nothing inside, as the prompt has them with thinking off.

    Raises:
        UserError: the template writes no answer, or a turn has no end.
    """

    def __init__(self, text: JinjaText, tokenizer: Tokenizer) -> None:
        self._text = text
        added = [token for token in tokenizer.hf.get_added_vocab() if token.strip()]
        added.sort(key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._eos = tokenizer.hf.eos_token or ""
        self._openings: dict[str, tuple[str, ...]] = {}
        self._learn_openings(tokenizer)
        self._learn_ends(tokenizer)
        longest = sorted(self.ends, key=len, reverse=True)
        self._end = re.compile("|".join(map(re.escape, longest)))
        self.empty = self._learn_empty()

    # ---- what is learnt when the template is loaded

    def _learn_openings(self, tokenizer: Tokenizer) -> None:
        """What opens an answer, by the role of the turn before."""
        asked, answered = Message("user", PROBE), Message("assistant", PROBE)
        called = Message("assistant", "", tool_calls=(CALL,))
        before: dict[str, tuple[Message, ...]] = {
            "user": (asked,),
            "tool": (asked, called, Message("tool", PROBE, tool_call_id="probe1234")),
            "assistant": (asked, answered),
            "system": (asked, answered, Message("system", PROBE)),
        }
        answer = Message("assistant", LAST)
        wholes = (answer,), (replace(answer, reasoning=THOUGHT),), (answer, asked, answered)
        for role, messages in before.items():
            prompt = self._text.probe(messages, prompt=True)
            plain = self._text.probe(messages) or ""
            found = {
                opening
                for behind in wholes
                for opening in _openings(prompt, plain, self._text.probe((*messages, *behind)))
            }
            if found:
                self._openings[role] = tuple(found)
        if "user" not in self._openings:
            raise UserError(
                f"{tokenizer.folder}: its chat template refuses a question with an answer; name "
                "another template with --prompt-type."
            )

    def _learn_ends(self, tokenizer: Tokenizer) -> None:
        """The tokens that end a turn; where the next turn's first token does, it is that one."""
        asked, answered = Message("user", "x"), Message("assistant", PROBE)
        last = self._first_token((asked, answered))
        middle = self._first_token((asked, answered, asked, Message("assistant", "y")))
        call = self._end_of_call(tuple(end for end in (last, middle) if end), bool(last))
        self.final = {False: "", True: ""}
        if not last:
            self.final = {False: middle or self._eos, True: call or middle or self._eos}
        self.between = bool(middle)
        system = Message("system", "z")
        later = self._first_token((asked, answered, system, asked, Message("assistant", "y")))
        ends = (last, middle, call, later, *self.final.values())
        self.ends = tuple(dict.fromkeys(end for end in ends if end))
        if not self.ends:
            raise UserError(
                f"{tokenizer.folder}: nothing ends a turn in its chat template, and it names no "
                "eos_token; a model trained on it would never stop."
            )

    def _first_token(self, messages: Sequence[Message]) -> str:
        """The first special token behind the probe; "" for none."""
        text = self._text.probe(messages) or ""
        found = self._tokens.search(text, text.rfind(PROBE) + len(PROBE)) if text else None
        return found.group() if found else ""

    def _end_of_call(self, known: Sequence[str], written: bool) -> str:
        """The token that ends a turn which calls tools; "" if it is no other than those known."""
        called = (Message("user", "x"), Message("assistant", "", tool_calls=(CALL,)))
        text = self._text.probe(called) or ""
        tail = text[text.rfind(PROBE) + len(PROBE) :] if PROBE in text else ""
        if written:
            # A vocabulary can have tokens for marks inside the turn too; its end stands last.
            tokens = self._tokens.findall(tail)
            return tokens[-1] if tokens and not any(end in tokens for end in known) else ""
        result = Message("tool", "z", tool_call_id="probe1234")
        whole = self._text.probe((*called, result)) or ""
        found = self._tokens.match(whole, len(text)) if text and whole.startswith(text) else None
        return found.group() if found else ""

    def _learn_empty(self) -> str:
        if "enable_thinking" not in self._text.names:
            return ""
        prompt = self._text.probe((Message("user", PROBE),), prompt=True, enable_thinking=False)
        if prompt is None:
            return ""
        start = self._start("user", prompt, prompt.rindex(PROBE), len(prompt))
        return prompt[start:]

    # ---- a conversation

    def spans(
        self, conversation: Conversation, text: str, train_empty: bool
    ) -> list[tuple[int, int] | None]:
        """``[start, end)`` of each turn of the assistant, None for the other turns.

        Args:
            conversation: the conversation.
            text: what the template writes for it.
            train_empty: whether empty marks of thinking are trained.

        Raises:
            TemplateError: a turn is dropped, or cannot be told from what is around it.
        """
        messages = conversation.messages
        turns = self.turns(conversation, text)
        found: list[tuple[int, int] | None] = []
        low = 0  # what is before belongs to earlier turns
        for index, (message, turn) in enumerate(zip(messages, turns, strict=True)):
            if message.role != "assistant":
                found.append(None)
                low = max(low, turn.last)
                continue
            later = [one.first for one in turns[index + 1 :] if one.first >= 0]
            high = later[0] if later else len(text)
            role = messages[index - 1].role if index else "user"
            start = self._start(role, text, low, turn.first if turn.first >= 0 else high)
            if not train_empty and self.empty and text.startswith(self.empty, start):
                start += len(self.empty)
            low = max(start, turn.last)
            follows = messages[index + 1].role if index + 1 < len(turns) else "nothing"
            found.append((start, self._stop(text, low, high, message, follows)))
        return found

    def _start(self, role: str, text: str, low: int, high: int) -> int:
        ends = [
            place + len(opening)
            for opening in self._openings.get(role, self._openings["user"])
            if (place := text.rfind(opening, low, high)) >= 0
        ]
        if ends:
            return max(ends)
        raise TemplateError("the chat template does not show where an answer begins")

    def _stop(self, text: str, low: int, high: int, message: Message, follows: str) -> int:
        """Behind the token that ends the turn whose text ends at ``low``.

        Args:
            high: where the text of the turn behind begins.
            follows: its role, or "nothing".
        """
        if follows == "nothing" and self.final[bool(message.tool_calls)]:
            return len(text)
        ends = [match.end() for match in self._end.finditer(text, low, high)]
        if ends:
            # Arguments may hold the token's text themselves: of a call the last one counts.
            return ends[-1] if message.tool_calls and follows != "user" else ends[0]
        if self.between or message.tool_calls:
            raise TemplateError("the chat template does not show where an answer ends")
        return low

    def turns(self, conversation: Conversation, text: str) -> list[Turn]:
        """Where each turn stands.

        Raises:
            TemplateError: marks change the text, or one is missing.
        """
        messages = conversation.messages
        for message in messages:
            if MARKS.search(message.content):
                raise TemplateError("private code points U+E0E0 to U+E0E3 in a text")
        marked = replace(conversation, messages=tuple(map(_marked, messages)))
        written = self._text(marked)
        if MARKS.sub("", written) != text:
            raise TemplateError("the chat template's text cannot be told apart by turns")
        marks = list(MARKS.finditer(written))
        turns, at = [], 0
        for index, message in enumerate(messages):
            turn = Turn()
            expected = MARKS.findall("".join(_texts(_marked(message))))
            for kind in expected:
                while kind in (FIRST, LAST) and marks[at : at + 1] and marks[at].group() == CALLED:
                    at += 1  # a result's turn can name the call again
                mark = marks[at] if at < len(marks) else None
                if mark is None or mark.group() != kind:
                    if kind == THOUGHT:
                        continue
                    raise TemplateError(
                        f"the chat template drops turn {index + 1} ({message.role})"
                    )
                place = mark.start() - at
                at += 1
                turn.first = place if turn.first < 0 else turn.first
                turn.last = place
            turns.append(turn)
        return turns


def _marked(message: Message) -> Message:
    """The turn with marks in its texts."""
    content = message.content
    if message.role == "user":
        # Amid the text: templates look at how a user's text begins and ends.
        begins = len(content) - len(content.lstrip())
        middle = begins + max(1, len(content.strip()) // 2)
        marked = content[:middle] + FIRST + content[middle:] if content.strip() else content
        return replace(message, content=marked)
    if message.role != "assistant":
        return replace(message, content=_at_start(content, FIRST))
    answer = split_thinking(message)[1]
    before = content[: len(content) - len(answer)]
    if answer.strip():
        end = len(answer.rstrip())
        answer = _at_start(answer[:end], FIRST) + LAST + answer[end:]
    return replace(
        message,
        content=before + answer,
        reasoning=None if message.reasoning is None else _at_start(message.reasoning, THOUGHT),
        tool_calls=tuple(replace(call, name=CALLED + call.name) for call in message.tool_calls),
    )


def _at_start(text: str, mark: str) -> str:
    """``text`` with a mark before its first character that is no white space, if it has one."""
    begins = len(text) - len(text.lstrip())
    return text[:begins] + mark + text[begins:] if begins < len(text) else text


def _texts(message: Message) -> tuple[str, ...]:
    """The texts of a turn in the order in which they are written."""
    return (message.reasoning or "", message.content, *(c.name for c in message.tool_calls))


def _openings(prompt: str | None, plain: str, whole: str | None) -> tuple[str, ...]:
    """What opens an answer: what the prompt has more than the turns before, and with their end.

    Args:
        prompt: the text of some turns, up to where the assistant goes on.
        plain: the text of these turns.
        whole: the text of these turns and an answer.
    """
    if prompt is None or whole is None:
        return ()
    ends = _shared(prompt, whole)
    begins = whole.rfind(PROBE, 0, ends) + len(PROBE)
    found = (whole[_shared(prompt, plain) : ends], whole[begins:ends])
    return tuple(opening for opening in found if opening)


def _shared(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))
