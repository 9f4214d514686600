"""Named templates as data: the built-in file, a user's files, hand-computed texts and faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message, Pair
from mindspeed_llm.data.templates import TemplateError, load_template
from mindspeed_llm.data.templates.definition import built_in, read_definitions
from mindspeed_llm.data.templates.named import NamedTemplate
from tests.unit.data.templates.official import plain


class Hf:
    bos_token, eos_token = "<s>", "</s>"


class AnyTokenizer:
    """Has every special text as one token, so that any definition can be written."""

    folder = Path("any")
    hf = Hf()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0]


class NoTokens(AnyTokenizer):
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * len(text)


def named(name: str, path: Path | None = None, **options: str) -> NamedTemplate:
    template = load_template(AnyTokenizer(), name, path, **options)  # type: ignore[arg-type]
    assert isinstance(template, NamedTemplate)
    return template


def trained(template: NamedTemplate, conversation: Conversation) -> list[str]:
    rendered = template.render(conversation)
    return [rendered.text[start:end] for start, end in rendered.spans]


TWO = plain("q", "a", "r", "b")
HAND = {
    "alpaca": (
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nq\n\n### Response:\na</s>\n\n"
        "### Instruction:\nr\n\n### Response:\nb</s>",
        ["a</s>", "b</s>"],
    ),
    "default": ("Human: q\nAssistant:a</s>\nHuman: r\nAssistant:b</s>", ["a</s>", "b</s>"]),
    "empty": ("qarb", ["a", "b"]),
    "llama2": ("<s>[INST] q [/INST] a </s><s>[INST] r [/INST] b </s>", [" a </s>", " b </s>"]),
    "mistral": ("<s>[INST] q [/INST]a</s>[INST] r [/INST]b</s>", ["a</s>", "b</s>"]),
    "deepseek2": (
        "<s>User: q\n\nAssistant: a</s>User: r\n\nAssistant: b</s>",
        [" a</s>", " b</s>"],
    ),
    "baichuan2": (
        "<reserved_106>q<reserved_107>a<reserved_106>r<reserved_107>b</s>",
        ["a", "b</s>"],
    ),
    "chatglm2": (
        "[gMASK]sop[Round 1]\n\n问：q\n\n答：a\n\n[Round 2]\n\n问：r\n\n答：b</s>",
        ["a", "b</s>"],
    ),
    "glm4": (
        "[gMASK]<sop><|user|>\nq<|assistant|>\na<|user|>\nr<|assistant|>\nb<|user|>",
        ["\na<|user|>", "\nb<|user|>"],
    ),
}


@pytest.mark.parametrize("name", HAND)
def test_hand_computed_texts(name: str) -> None:
    text, spans = HAND[name]
    assert named(name).render(TWO).text == text
    assert trained(named(name), TWO) == spans


def test_every_built_in_template_writes_a_conversation() -> None:
    for name in built_in().by_name:
        texts = trained(named(name), TWO)
        assert [text.strip()[0] for text in texts] == ["a", "b"], name


def test_system_text_inside_the_users_turn() -> None:
    system = plain("q", "a", system="s")
    assert named("llama2").render(system).text == (
        "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\nq [/INST] a </s>"
    )
    with pytest.raises(TemplateError, match="no form for a system text"):
        named("gemma").render(system)


def test_only_answers_marked_as_trained_have_spans() -> None:
    first = Message("assistant", "a", trained=False)
    chat = Conversation((Message("user", "q"), first, *plain("r", "b").messages))
    assert trained(named("chatml"), chat) == ["b<|im_end|>"]


def test_train_turns() -> None:
    chat = plain("q", "a", "r", "b")
    last = load_template(AnyTokenizer(), "chatml", train_turns="last")  # type: ignore[arg-type]
    (one,) = last.samples(chat)
    assert [one.text[start:end] for start, end in one.spans] == ["b<|im_end|>"]
    each = load_template(AnyTokenizer(), "chatml", train_turns="each")  # type: ignore[arg-type]
    first, second = each.samples(chat)
    assert second.text.startswith(first.text)
    assert [len(part.spans) for part in (first, second)] == [1, 1]


def test_a_pair_trains_the_two_answers_alone() -> None:
    prompt = plain("q", "a", "r")
    pair = Pair(prompt, Message("assistant", "good"), Message("assistant", "bad"))
    chosen, rejected = named("chatml").pair(pair)
    assert [chosen.text[a:b] for a, b in chosen.spans] == ["good<|im_end|>"]
    assert [rejected.text[a:b] for a, b in rejected.spans] == ["bad<|im_end|>"]
    start = chosen.spans[0][0]
    assert chosen.text[:start] == rejected.text[:start] == named("chatml").prompt(prompt)


THOUGHT = Conversation(
    (
        *(Message("user", "q"), Message("assistant", "a", reasoning="x")),
        *(Message("user", "r"), Message("assistant", "b")),
    )
)
EMPTY = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("thinking", "preserve", "expected"),
    [
        ("true", False, ["a<|im_end|>", EMPTY + "b<|im_end|>"]),
        ("false", False, ["a<|im_end|>", "b<|im_end|>"]),
        ("none", False, ["a<|im_end|>", "b<|im_end|>"]),
        ("true", True, ["<think>\nx\n</think>\n\na<|im_end|>", EMPTY + "b<|im_end|>"]),
        ("false", True, ["a<|im_end|>", "b<|im_end|>"]),
        ("none", True, ["<think>\nx\n</think>\n\na<|im_end|>", "b<|im_end|>"]),
    ],
)
def test_enable_thinking(thinking: str, preserve: bool, expected: list[str]) -> None:
    """true trains empty marks, false takes thinking out, none keeps both."""
    template = named("qwen3", enable_thinking=thinking, preserve_thinking=preserve)  # type: ignore[arg-type]
    assert trained(template, THOUGHT) == expected
    assert template.render(THOUGHT).text.count(EMPTY) == (
        2 if preserve and thinking == "false" else 1
    )


def test_a_template_that_cannot_think() -> None:
    with pytest.raises(UserError, match="writes no thinking"):
        named("qwen", enable_thinking="true")
    with pytest.raises(TemplateError, match="no form for thinking"):
        named("qwen").render(THOUGHT)
    assert trained(named("qwen", enable_thinking="false"), THOUGHT)[0] == "a<|im_end|>"


def test_names() -> None:
    with pytest.raises(UserError, match="Did you mean qwen3"):
        named("qwenn3")
    with pytest.raises(UserError, match=r"gpt_oss is not available: .*auto"):
        named("gpt_oss")
    with pytest.raises(UserError, match=r"<\|im_end\|>, which any has no token for"):
        load_template(NoTokens(), "chatml")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="name two templates"):
        load_template(AnyTokenizer(), "qwen", use_chat_template=True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--prompt-type auto"):
        load_template(AnyTokenizer())  # type: ignore[arg-type]


SLOTS = [
    {
        "name": "qwen3",
        "format_user": {
            "slots": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"]
        },
        "format_assistant": {"slots": ["{{content}}<|im_end|>\n"]},
        "format_system": {"slots": ["<|im_start|>system\n{{content}}<|im_end|>\n"]},
        "format_tools": {"tool_format": "qwen"},
        "stop_words": ["<|im_end|>"],
        "replace_eos": True,
        "template_class": "ReasoningTemplate",
    },
    {
        "name": "glm",
        "format_prefix": {"slots": [{"token": "[gMASK]"}, "<sop>"]},
        "format_user": {"slots": ["<|user|>\n{{content}}<|assistant|>"]},
        "format_assistant": {"slots": ["\n{{content}}"]},
        "stop_words": ["<|user|>", "<|observation|>"],
        "efficient_eos": True,
    },
    {
        "name": "plain",
        "format_prefix": {"slots": [["bos_token"]]},
        "format_user": {"slots": ["Human: {{content}}\nAssistant:"]},
        "format_separator": {"slots": ["\n"]},
    },
]


@pytest.fixture
def slots(tmp_path: Path) -> Path:
    path = tmp_path / "templates.json"
    path.write_text(json.dumps(SLOTS), encoding="utf-8")
    return path


def test_a_file_of_slots(slots: Path) -> None:
    """The same text as the built-in template of the model, and the same trained part."""
    for thinking in ("true", "false", "none"):
        theirs = named("qwen3", slots, enable_thinking=thinking)
        ours = named("qwen3", enable_thinking=thinking, preserve_thinking=True)  # type: ignore[arg-type]
        assert theirs.render(THOUGHT) == ours.render(THOUGHT)
        system = plain("q", "a", system="s")
        assert theirs.render(system) == ours.render(system)
        asked = Conversation(system.messages[:2])
        assert theirs.prompt(asked) == ours.prompt(asked)
    assert named("glm", slots).render(TWO) == named("glm4").render(TWO)
    assert named("plain", slots).render(TWO).text == (
        "<s>Human: q\nAssistant:a</s>\nHuman: r\nAssistant:b</s>"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("mine: {usr: x}", "no field 'usr'. Did you mean user?"),
        ("mine: {user: hello}", "must hold {content} once"),
        ("mine: {trim: maybe}", "trim is 'maybe', which is no bool"),
        ("mine: {tools: what}", "tools is one of"),
        ("just text", "expected templates by name"),
        ("a: [", "neither YAML nor JSON"),
        ('[{"name": "x", "format_usr": 1}]', "Did you mean format_user?"),
        ('[{"name": "x", "format_user": {"slots": [7]}}]', "7 is no slot"),
        ('[{"name": "x", "template_class": "Fancy"}]', "template_class is one of"),
        ("[3]", "entry 1 is no template"),
    ],
)
def test_faults_of_a_file_are_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read_definitions(path)
    assert words in str(error.value)
    with pytest.raises(UserError, match="no such file"):
        read_definitions(tmp_path / "absent.json")
