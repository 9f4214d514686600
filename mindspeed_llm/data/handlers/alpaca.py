"""Handlers of Alpaca's columns: instruction, input, output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mindspeed_llm.data.conversation import Conversation, Message, Pair
from mindspeed_llm.data.handlers.base import Handler, as_list, as_text, as_tools
from mindspeed_llm.data.handlers.faults import Malformed
from mindspeed_llm.data.handlers.roles import prompt_of
from mindspeed_llm.data.readers.records import json_kind

COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "history",
    "system": "system",
    "tools": "tools",
}


class AlpacaStyleInstructionHandler(Handler):
    """``{"instruction": str, "input": str?, "output": str, "history": [[str, str]]?, "system"?}``

    The user says ``instruction``, a line break, ``input`` (the non-empty ones of them); the
    assistant answers ``output``. Pairs of ``history`` come before. A null or missing optional value
    is none. ``--map-keys '{"prompt": ..., "query": ..., "response": ..., "history": ...,
    "system": ..., "tools": ...}'`` names other columns.
    """

    defaults: ClassVar[Mapping[str, str]] = COLUMNS
    required: ClassVar[Sequence[str]] = ("prompt", "response")

    def question(self, record: Mapping[str, Any]) -> list[Message]:
        """The turns before the answer."""
        messages = []
        system = self.text(record, "system")
        if system:
            messages.append(Message("system", system))
        for pair in as_list(self.value(record, "history"), self.columns["history"]):
            if not isinstance(pair, list) or len(pair) != 2:
                raise Malformed(
                    f'"{self.columns["history"]}" holds {json_kind(pair)} that is no pair of texts'
                )
            question, answer = (as_text(text, self.columns["history"]) for text in pair)
            messages += [Message("user", question), Message("assistant", answer)]
        parts = [self.text(record, "prompt"), self.text(record, "query")]
        messages.append(Message("user", "\n".join(part for part in parts if part)))
        return messages

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """One conversation."""
        answer = Message("assistant", self.text(record, "response"))
        return self.conversation(record, self.answered([*self.question(record), answer]))

    def conversation(
        self, record: Mapping[str, Any], messages: tuple[Message, ...]
    ) -> Conversation:
        """Turns with the record's tools and further columns."""
        tools = as_tools(self.value(record, "tools"), self.columns["tools"])
        return Conversation(messages, tools, self.extra(record))


class GeneralInstructionHandler(AlpacaStyleInstructionHandler):
    """The same records, written as Alpaca's prompt unless ``--prompt-type`` says otherwise."""

    prompt_type = "alpaca"


class AlpacaStylePairwiseHandler(AlpacaStyleInstructionHandler):
    """Two answers: ``{"instruction": str, "input": str?, "chosen": str, "rejected": str}``

    Either answer may also be a list whose first element it is (``[better, ...]``).
    """

    kind = "pairwise"
    defaults: ClassVar[Mapping[str, str]] = {
        **{name: column for name, column in COLUMNS.items() if name != "response"},
        "chosen": "chosen",
        "rejected": "rejected",
    }
    required: ClassVar[Sequence[str]] = ("prompt", "chosen", "rejected")

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """A prompt and two answers."""
        prompt = self.conversation(record, prompt_of(self.question(record)))
        chosen, rejected = (self.answer(record, name) for name in ("chosen", "rejected"))
        for answer in (chosen, rejected):
            self.answered([*prompt.messages, answer])
        return Pair(prompt, chosen, rejected)

    def answer(self, record: Mapping[str, Any], name: str) -> Message:
        """One of the answers."""
        value = self.value(record, name)
        if isinstance(value, list) and value:
            value = value[0]
        return Message("assistant", as_text(value, self.columns[name]))


class PPOAlpacaStyleInstructionHandler(AlpacaStyleInstructionHandler):
    """Alpaca's columns for reinforcement learning: the prompt alone, up to where the model goes on.

    ``output`` is not needed.
    """

    kind = "prompt"
    required: ClassVar[Sequence[str]] = ("prompt",)

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """The turns to answer."""
        return self.conversation(record, prompt_of(self.question(record)))


class R1AlpacaStyleInstructionHandler(PPOAlpacaStyleInstructionHandler):
    """The same with the right answer as ``labels`` (all of its tokens), and further columns.

    ``--dataset-additional-keys`` names columns that are tokenized into data sets of their own.
    """

    required: ClassVar[Sequence[str]] = ("prompt", "response")

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """The turns to answer; the answer among the extra values."""
        prompt = self.conversation(record, prompt_of(self.question(record)))
        prompt.extra["labels"] = self.text(record, "response")
        return prompt
