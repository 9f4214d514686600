"""CHAT-01: thinking in earlier answers of Qwen3, against the tokenizer's own template."""

from __future__ import annotations

import pytest

from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.templates import load_template
from tests.unit.data.templates import official

CALL = (ToolCall("weather", {"city": "Rome"}),)
THREE = Conversation(
    tuple(
        message
        for turn in "123"
        for message in (
            Message("user", f"question {turn}"),
            Message("assistant", f"answer {turn}", reasoning=f"thought {turn}"),
        )
    )
)
CHAIN = Conversation(
    (
        *THREE.messages[:2],
        Message("user", "weather?"),
        Message("assistant", "", "must look", CALL),
        Message("tool", "sunny"),
        Message("assistant", "It is sunny.", "now say"),
    )
)


def trained_texts(name: str, chat: Conversation, **options: object) -> list[list[str]]:
    """The trained parts of each sample, decoded from its labels, whose ids must be official."""
    tokenizer, _ = official.load("qwen3")
    template = load_template(tokenizer, name, enable_thinking="true", **options)  # type: ignore[arg-type]
    encoded = official.encoder("qwen3").encode(template.samples(chat))
    found, start, span = [], 0, 0
    for length, count in zip(encoded.lengths, encoded.span_counts, strict=True):
        spans = encoded.spans[span : span + count]
        found.append([tokenizer.decode(encoded.labels[a:b].tolist()) for a, b in spans])
        start, span = start + length, span + count
    return found


@pytest.mark.parametrize("name", ["qwen3", "auto"])
def test_ids_are_official_and_the_policy_is_a_choice(name: str) -> None:
    """CHAT-01: three turns, each with thinking."""
    tokenizer, _ = official.load("qwen3")
    template = load_template(tokenizer, name, enable_thinking="true")
    (sample,) = template.samples(THREE)
    ids = tokenizer.encode(sample.text, add_special_tokens=False)
    assert ids == official.apply("qwen3", THREE, "true", tokenize=True, return_dict=False)

    last = "<think>\nthought 3\n</think>\n\nanswer 3<|im_end|>"
    assert trained_texts(name, THREE) == [["answer 1<|im_end|>", "answer 2<|im_end|>", last]]
    assert trained_texts(name, THREE, train_turns="last") == [[last]]
    each = trained_texts(name, THREE, train_turns="each")
    assert each == [
        [f"<think>\nthought {turn}\n</think>\n\nanswer {turn}<|im_end|>"] for turn in "123"
    ]


@pytest.mark.parametrize("name", ["qwen3", "auto"])
def test_thinking_in_a_live_chain_of_calls_is_kept(name: str) -> None:
    """CHAT-01: user, call, result, answer; and the same once another question follows."""
    (found,) = trained_texts(name, CHAIN)
    assert found[0] == "answer 1<|im_end|>"
    assert found[1].startswith("<think>\nmust look\n</think>\n\n<tool_call>")
    assert found[2] == "<think>\nnow say\n</think>\n\nIt is sunny.<|im_end|>"
    longer = Conversation((*CHAIN.messages, *THREE.messages[:2]))
    (found,) = trained_texts(name, longer)
    assert found[1].startswith("<tool_call>") and found[2] == "It is sunny.<|im_end|>"
    tokenizer, _ = official.load("qwen3")
    text = load_template(tokenizer, name, enable_thinking="true").render(longer).text
    assert text == official.apply("qwen3", longer, "true", tokenize=False)
