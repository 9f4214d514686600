"""CHAT-02: GLM-4's prefix, system mark and line feed; trained, generated and scored alike."""

from __future__ import annotations

import pytest

from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.templates import load_template
from tests.unit.data.templates import official
from tests.unit.data.templates.official import plain

CALL = (ToolCall("weather", {"city": "北京"}),)
RESULT = Conversation(
    (
        Message("user", "weather?"),
        Message("assistant", "", tool_calls=CALL),
        Message("tool", "sunny"),
        Message("assistant", "It is sunny."),
    )
)
# The official text of GLM-4-0414, by hand; the last mark ends the last answer.
CASES = {
    "no system": (plain("q", "a"), "[gMASK]<sop><|user|>\nq<|assistant|>\na<|user|>"),
    "system": (
        plain("q", "a", system="s"),
        "[gMASK]<sop><|system|>\ns<|user|>\nq<|assistant|>\na<|user|>",
    ),
    "turns": (
        plain("q", "a", "r", "b"),
        "[gMASK]<sop><|user|>\nq<|assistant|>\na<|user|>\nr<|assistant|>\nb<|user|>",
    ),
    "result": (
        RESULT,
        '[gMASK]<sop><|user|>\nweather?<|assistant|>weather\n{"city": "北京"}<|observation|>\nsunny'
        "<|assistant|>\nIt is sunny.<|user|>",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_glm4_0414(case: str) -> None:
    """CHAT-02: prefix once, marks as single tokens, the line feed on the answer's side."""
    tokenizer, _ = official.load("glm4_moe")
    template = load_template(tokenizer, "glm4")
    chat, text = CASES[case]
    rendered = template.render(chat)
    assert rendered.text == text
    ids = tokenizer.encode(text, add_special_tokens=False)
    for mark in official.GLM:
        assert ids.count(tokenizer.hf.convert_tokens_to_ids(mark)) == text.count(mark)
    # What is generated after the prompt is what was trained.
    start, end = rendered.spans[-1]
    prompt = template.prompt(Conversation(chat.messages[:-1]))
    assert text[:start] == prompt and prompt.endswith("<|assistant|>")
    assert text[start:end].startswith("\n") and text[start:end].endswith("<|user|>")
    assert set(template.stop) >= {"<|user|>", "<|observation|>"}


def test_tools_are_listed_in_a_system_turn() -> None:
    """CHAT-02: the system mark stands before the list of functions."""
    tokenizer, _ = official.load("glm4_moe")
    chat = Conversation(RESULT.messages, (official.TOOL,))
    text = load_template(tokenizer, "glm4").render(chat).text
    assert text.startswith('[gMASK]<sop><|system|>\n# 可用工具\n\n## weather\n\n{\n    "name"')
    assert "\n在调用上述函数时，请使用 Json 格式表示调用的参数。<|user|>\n" in text


def test_glm45_trains_as_it_generates() -> None:
    """CHAT-02: the same of GLM-4.5, against its own template."""
    tokenizer, _ = official.load("glm4_moe")
    for name in ("glm4_moe", "auto"):
        template = load_template(tokenizer, name, enable_thinking="true")
        for chat in official.fixed("glm4_moe"):
            rendered = template.render(chat)
            prompt = official.apply(
                *("glm4_moe", Conversation(chat.messages[:-1], chat.tools), "true"),
                tokenize=False,
                add_generation_prompt=True,
            )
            start, end = rendered.spans[-1]
            assert rendered.text[:start] == prompt
            assert rendered.text[start:end].endswith("<|user|>")
