"""The thinking of an answer: found in the text of data, kept, or taken out."""

from __future__ import annotations

from dataclasses import replace

from mindspeed_llm.data.conversation import Conversation, Message

# What data writes around thinking, whatever the template writes.
OPEN, CLOSE = "<think>", "</think>"


def split_thinking(message: Message, opened: str = OPEN, closed: str = CLOSE) -> tuple[str, str]:
    """The thinking of an answer ("" for none) and the rest of it.

    Data may give it apart, or within the content in marks; the rest then has no line feeds before
    it, as official templates have it.
    """
    if message.reasoning is not None:
        return message.reasoning, message.content
    content = message.content
    if closed not in content:
        return "", content
    thinking = content.split(closed)[0].rstrip("\n").split(opened)[-1].lstrip("\n")
    return thinking, content.split(closed)[-1].lstrip("\n")


def without_thinking(conversation: Conversation) -> Conversation:
    """The conversation with the thinking taken out of every answer."""
    return replace(
        conversation,
        messages=tuple(
            replace(message, content=split_thinking(message)[1], reasoning=None)
            if message.role == "assistant"
            else message
            for message in conversation.messages
        ),
    )
