"""Named templates and the tokenizer's own, against transformers on real tokenizers."""

from __future__ import annotations

import numpy as np
import pytest

from mindspeed_llm.data.conversation import Conversation
from mindspeed_llm.data.encoder import choose_engine
from mindspeed_llm.data.templates import ChatEncoder, Template, load_template
from mindspeed_llm.data.templates.auto import AutoTemplate
from tests import real_inputs
from tests.unit.data.templates import official
from tests.unit.data.templates.official import OFFICIAL

QUICK = ("qwen3", "glm4_moe")
ROWS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OFFICIAL]


def thinking_of(name: str) -> tuple[str, ...]:
    return ("true", "false", "none") if OFFICIAL[name].thinking else ("none",)


def templates(name: str, thinking: str = "none") -> dict[str, Template]:
    """Every way of writing a conversation."""
    tokenizer, _ = official.load(name)
    return {
        "named": load_template(tokenizer, OFFICIAL[name].named, enable_thinking=thinking),
        "auto": load_template(tokenizer, "auto", enable_thinking=thinking),
        "by jinja": AutoTemplate(tokenizer, thinking, fast=False),
    }


@pytest.mark.parametrize("name", ROWS)
def test_text_spans_and_prompt_are_those_of_the_official_template(name: str) -> None:
    for thinking in thinking_of(name):
        ways = templates(name, thinking)
        for chat in official.fixed(name):
            expected = official.expected_text(name, chat, thinking)
            rendered = {way: template.render(chat) for way, template in ways.items()}
            assert {one.text for one in rendered.values()} == {expected}
            assert len({one.spans for one in rendered.values()}) == 1, rendered
            asked = Conversation(chat.messages[:-1], chat.tools)
            prompt = official.apply(
                name, asked, thinking, tokenize=False, add_generation_prompt=True
            )
            assert {template.prompt(asked) for template in ways.values()} == {prompt}


@pytest.mark.parametrize("name", ROWS)
def test_the_tokenizers_own_template_is_recognised(name: str) -> None:
    tokenizer, _ = official.load(name)
    assert AutoTemplate(tokenizer).fast_form == OFFICIAL[name].named


def check_generated(name: str, count: int, ways: tuple[str, ...], encoder: ChatEncoder) -> None:
    """Ids against ``apply_chat_template``, masks against character offsets."""
    tokenizer, _ = official.load(name)
    chats = list(official.generated(name, count))
    texts = [official.expected_text(name, chat) for chat in chats]
    empty = {"qwen3": "<think>\n\n</think>\n\n", "glm4_moe": "\n<think></think>"}.get(name, "")
    for way in ways:
        template = templates(name)[way]
        rendered = [template.render(chat) for chat in chats]
        assert [one.text for one in rendered] == texts
        encoded = encoder.encode(rendered)
        start = 0
        for chat, text, length in zip(chats, texts, encoded.lengths.tolist(), strict=True):
            ids = encoded.ids[start : start + length]
            expected = tokenizer.hf(text, add_special_tokens=False)["input_ids"]
            assert ids.tolist() == expected
            if not OFFICIAL[name].appended:
                applied = official.apply(name, chat, tokenize=True, return_dict=False)
                assert applied == expected
            trained = encoded.trained[start : start + length]
            assert np.array_equal(trained, official.oracle(name, chat, text, empty)), text
            start += length
        assert start == encoded.ids.size


@pytest.mark.parametrize("name", QUICK)
def test_generated_chats(name: str) -> None:
    check_generated(name, 40, ("named", "by jinja"), official.encoder(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFICIAL)
def test_a_thousand_generated_chats(name: str) -> None:
    tokenizer, _ = official.load(name)
    engine = choose_engine(tokenizer, ["Hello 你好"], workers=2)
    check_generated(name, 1000, ("named", "auto"), ChatEncoder(engine, tokenizer))


TWINS = ("qwen2_5", "qwen3", "llama3", "gemma", "gemma3")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "qwen3" else pytest.mark.slow) for one in TWINS]
)
def test_masks_are_those_of_the_twin_with_generation_marks(name: str) -> None:
    """Only the line feed behind the end of a turn, which the twins mark too, is not trained."""
    tokenizer, _ = official.load(name)
    twin = real_inputs.chat_template(f"{OFFICIAL[name].template or name}_training")
    thinking = "true" if OFFICIAL[name].thinking else None
    ours = load_template(tokenizer, OFFICIAL[name].named, enable_thinking=thinking)
    marked = AutoTemplate(tokenizer, source=twin)
    encoder = official.encoder(name)
    compared = 0
    for chat in official.generated(name, 40):
        rendered, theirs = ours.render(chat), marked.render(chat)
        if theirs.text != rendered.text:
            continue  # Qwen3's twin keeps the thinking that the official template removes
        encoding = tokenizer.hf.apply_chat_template(
            official.messages(chat),
            tools=list(chat.tools) or None,
            chat_template=twin,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        encoded = encoder.encode([rendered, theirs])
        length = int(encoded.lengths[0])
        assert encoded.ids[:length].tolist() == encoding["input_ids"]
        mask = np.array(encoding["assistant_masks"], dtype=bool)
        if all(message.trained for message in chat.messages):
            assert np.array_equal(encoded.trained[length:], mask)
            more = mask & ~encoded.trained[:length]
            assert not (encoded.trained[:length] & ~mask).any()
            assert {tokenizer.decode([i]) for i in encoded.ids[:length][more].tolist()} <= {"\n"}
            compared += 1
    assert compared >= 5
