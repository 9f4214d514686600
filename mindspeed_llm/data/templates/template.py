"""What every template can do, whichever way it writes a conversation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from mindspeed_llm.data.conversation import Conversation, Message, Pair


class TemplateError(ValueError):
    """A conversation that this template cannot write; the message says why."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text.

    Attributes:
        text: all of it, special tokens written out, a BOS included if the template has one.
        spans: ``[start, end)`` in characters of what is trained, ascending, apart from each other.
            A span begins where the prompt ends and ends after the token that ends the turn.
    """

    text: str
    spans: tuple[tuple[int, int], ...]


class Template(ABC):
    """Writes conversations.

    Attributes:
        name: as the user gave it.
        stop: the texts of the tokens that end an assistant's turn, the most usual one first.
        train_turns: what is trained of a conversation with several answers: ``all`` of them, the
            ``last``, or ``each`` as a sample of its own.
    """

    name: str
    stop: tuple[str, ...]
    train_turns: str = "all"

    @abstractmethod
    def render(self, conversation: Conversation) -> Rendered:
        """The whole conversation, with the spans of every assistant's turn that is ``trained``.

        Raises:
            TemplateError: the template has no form for it (no tools, an odd order of roles ...).
        """

    @abstractmethod
    def prompt(self, conversation: Conversation) -> str:
        """The conversation up to where the assistant goes on, to generate from.

        Raises:
            TemplateError: as for :meth:`render`.
        """

    def samples(self, conversation: Conversation) -> list[Rendered]:
        """The texts to train on: what :meth:`render` gives, or one text a turn (``each``).

        Raises:
            TemplateError: as for :meth:`render`.
        """
        if self.train_turns == "last":
            return [self.render(only_last(conversation))]
        if self.train_turns == "each":
            return [self.render(part) for part in each_turn(conversation)]
        return [self.render(conversation)]

    def pair(self, pair: Pair) -> tuple[Rendered, Rendered]:
        """The chosen and the rejected answer, each after the prompt; only the answer is trained.

        Raises:
            TemplateError: as for :meth:`render`.
        """
        history = tuple(replace(message, trained=False) for message in pair.prompt.messages)

        def answered(answer: Message) -> Rendered:
            answer = replace(answer, trained=True)
            return self.render(replace(pair.prompt, messages=(*history, answer)))

        return answered(pair.chosen), answered(pair.rejected)


def only_last(conversation: Conversation) -> Conversation:
    """Train the turns after the last user's message alone (a chain of tool calls is one answer)."""
    messages = conversation.messages
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    last = users[-1] if users else -1
    return replace(
        conversation,
        messages=tuple(
            message if index > last else replace(message, trained=False)
            for index, message in enumerate(messages)
        ),
    )


def each_turn(conversation: Conversation) -> list[Conversation]:
    """One conversation for each trained answer: up to it, with nothing else trained."""
    messages = conversation.messages
    return [
        replace(
            conversation,
            messages=(
                *(replace(earlier, trained=False) for earlier in messages[:index]),
                messages[index],
            ),
        )
        for index, message in enumerate(messages)
        if message.role == "assistant" and message.trained
    ]
