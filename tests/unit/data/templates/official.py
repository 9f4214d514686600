"""Official chat templates on real tokenizers, conversations for them, and an oracle for masks.

The oracle knows of each template only two literal texts: what opens an answer and what ends it. It
finds a turn by a word that stands nowhere else, and tells trained tokens by the character offsets
of ``tokenizers``.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.encoder import TokenizersEngine
from mindspeed_llm.data.templates import ChatEncoder
from mindspeed_llm.data.templates.thinking import without_thinking
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests import real_inputs

GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")


@dataclass(frozen=True)
class Official:
    """A row of the table.

    Attributes:
        tokenizer: of :mod:`tests.real_inputs`.
        template: of the same; None for the tokenizer's own.
        named: the named template that must be equal.
        opening, end, end_of_call: literal texts of it.
        appended: what follows the official text, so that the last turn has its end.
        system, tools, thinking: what it has forms for.
        added: tokens that the tokenizer lacks.
    """

    tokenizer: str
    template: str | None
    named: str
    opening: str
    end: str
    end_of_call: str = ""
    appended: bool = False
    system: bool = True
    tools: bool = False
    thinking: bool = False
    added: tuple[str, ...] = ()


CHATML = ("<|im_start|>assistant\n", "<|im_end|>")
OFFICIAL = {
    "qwen2_5": Official("qwen2_5", "qwen2_5", "qwen", *CHATML, tools=True),
    "qwen3": Official("qwen3", "qwen3", "qwen3", *CHATML, tools=True, thinking=True),
    "smollm2": Official("smollm2", None, "smollm2", *CHATML),
    "llama3": Official(
        "llama3_1",
        "llama3",
        "llama3",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
    ),
    "gemma": Official(
        "gemma3", "gemma", "gemma", "<start_of_turn>model\n", "<end_of_turn>", system=False
    ),
    "gemma3": Official("gemma3", None, "gemma3", "<start_of_turn>model\n", "<end_of_turn>"),
    "deepseek3": Official(
        "deepseek_v3", None, "deepseek3", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
    ),
    # No package holds the vocabulary of GLM: another one with its special tokens added.
    "glm4_moe": Official(
        *("qwen3", "glm4moe", "glm4_moe", "<|assistant|>", "<|user|>", "<|observation|>"),
        appended=True,
        tools=True,
        thinking=True,
        added=GLM,
    ),
}


@functools.cache
def load(name: str) -> tuple[Tokenizer, str]:
    """The tokenizer and the official template of a row."""
    row = OFFICIAL[name]
    tokenizer = load_hf_tokenizer(real_inputs.tokenizer(row.tokenizer))
    if row.added:
        tokenizer.hf.add_special_tokens({"additional_special_tokens": list(row.added)})
    source = real_inputs.chat_template(row.template) if row.template else tokenizer.chat_template
    assert source is not None
    tokenizer.hf.chat_template = source
    return tokenizer, source


@functools.cache
def encoder(name: str) -> ChatEncoder:
    """Encodes with ``tokenizers``; choosing the fastest engine takes seconds."""
    tokenizer, _ = load(name)
    return ChatEncoder(TokenizersEngine(tokenizer.backend_json()), tokenizer)


def messages(conversation: Conversation) -> list[dict[str, Any]]:
    """A conversation as ``apply_chat_template`` takes it."""
    written = []
    for message in conversation.messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning is not None:
            one["reasoning_content"] = message.reasoning
        if message.tool_calls:
            one["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.tool_calls
            ]
        written.append(one)
    return written


def apply(name: str, conversation: Conversation, thinking: str = "none", **options: Any) -> Any:
    """What transformers writes (or, by default, its ids); thinking taken out if it is false."""
    tokenizer, _ = load(name)
    if thinking == "false":
        conversation = without_thinking(conversation)
    if thinking != "none":
        options["enable_thinking"] = thinking == "true"
    return tokenizer.hf.apply_chat_template(
        messages(conversation), tools=list(conversation.tools) or None, **options
    )


def expected_text(name: str, conversation: Conversation, thinking: str = "none") -> str:
    """The official text, with the end of the last turn where the template leaves it out."""
    row = OFFICIAL[name]
    text = apply(name, conversation, thinking, tokenize=False)
    if not row.appended or conversation.messages[-1].role != "assistant":
        return text
    return text + (row.end_of_call if conversation.messages[-1].tool_calls else row.end)


def oracle(name: str, conversation: Conversation, text: str, empty: str = "") -> np.ndarray:
    """[tokens] bool: what is trained, found by words that stand once in the text.

    Args:
        empty: marks of thinking with nothing inside, which belong to the prompt; "" if trained.
    """
    row = OFFICIAL[name]
    encoding = load(name)[0].hf.backend_tokenizer.encode(text, add_special_tokens=False)
    offsets = np.array(encoding.offsets)
    trained = np.zeros(len(offsets), dtype=bool)
    for message in conversation.messages:
        if message.role != "assistant" or not message.trained:
            continue
        word = message.tool_calls[-1].name if message.tool_calls else message.content.split()[-1]
        place = text.rindex(word)
        start = text.rindex(row.opening, 0, place) + len(row.opening)
        if empty and text.startswith(empty, start):
            start += len(empty)
        end = row.end_of_call or row.end if message.tool_calls else row.end
        stop = text.index(end, place) + len(end)
        trained |= (offsets[:, 1] > start) & (offsets[:, 0] < stop)
    return trained


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "查天气 <now>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SNIPPETS = (
    *(
        "Hello",
        " spaces  ",
        "\n",
        "\t",
        "<b>&amp;",
        "你好，世界。",
        "😀👨‍👩‍👧",
        "é",
        "12 345",
        "'\"\\",
        "{x}",
    ),
    *("def f(x):\n    return x", "### Response:", "user", "assistant\n", "a" * 40, "मस्ते", " ", "ﬁ"),
)


def generated(name: str, count: int, seed: int = 0) -> Iterator[Conversation]:
    """Random conversations that the template has forms for; answers end in words of their own."""
    row = OFFICIAL[name]
    draw = random.Random(seed)
    words = iter(range(100000, 900000))

    def text() -> str:
        chosen = [draw.choice(SNIPPETS) for _ in range(draw.randrange(1, 12))]
        return "".join(chosen) + draw.choice(("", " ", "\n", "x"))

    def answer(calls: bool) -> Message:
        content = f"{text()} w{next(words)}{draw.choice(('', ' ', chr(10)))}"
        reasoning = text() if row.thinking and draw.random() < 0.5 else None
        made = tuple(
            ToolCall(f"tool{next(words)}", {"city": text(), "n": draw.randrange(9)})
            for _ in range(draw.randrange(1, 3) if calls else 0)
        )
        if calls and draw.random() < 0.5:
            content = ""
        return Message("assistant", content, reasoning, made, trained=draw.random() < 0.9)

    for _ in range(count):
        chat = [Message("system", text())] if row.system and draw.random() < 0.4 else []
        for _ in range(draw.randrange(1, 5)):
            chat.append(Message("user", f"{text()}?"))
            while row.tools and draw.random() < 0.3:
                chat.append(answer(calls=True))
                chat += [Message("tool", text() + "!") for _ in chat[-1].tool_calls]
            chat.append(answer(calls=False))
        tools = (TOOL,) * draw.randrange(3) if row.tools else ()
        yield Conversation(tuple(chat), tools)


def plain(*texts: str, system: str | None = None) -> Conversation:
    """Question and answer in turn."""
    roles = ("user", "assistant")
    chat = [Message(roles[index % 2], one) for index, one in enumerate(texts)]  # type: ignore[arg-type]
    before = [Message("system", system)] if system is not None else []
    return Conversation((*before, *chat))


CALL = (ToolCall("weather", {"city": "北京", "days": 2}),)


def fixed(name: str) -> list[Conversation]:
    """Single and multi turn, system, tools, thinking: what the template has forms for."""
    row = OFFICIAL[name]
    chats = [plain("hi", "hello"), plain("a", "b", "c", "d"), plain(" a \n", "\n b ", "c", "d\n")]
    if row.system:
        chats += [plain("a", "b", "c", "d", system="Be kind.")]
    if row.thinking:
        thought = [replace(one, reasoning="\nhm\n") for one in plain("a", "b").messages]
        chats += [
            Conversation((*plain("a", "b").messages, *thought)),
            Conversation((*thought, *plain("c", "d").messages)),
            plain("a", "<think>\nx\n</think>\n\nb", "c", "<think>\ny\n</think>\n\nd"),
        ]
    if row.tools:
        reasoning = "r" if row.thinking else None
        chain = (
            Message("user", "a"),
            Message("assistant", "", reasoning, CALL),
            Message("tool", "sunny"),
            Message("assistant", "b", reasoning),
        )
        two = (
            Message("user", "a"),
            Message("assistant", "let me see", tool_calls=CALL * 2),
            Message("tool", "sunny"),
            Message("tool", "rain"),
            Message("assistant", "c"),
        )
        calls = [Conversation(chain), Conversation((*two, *chain)), Conversation((*chain, *two))]
        chats += [*calls, *(replace(one, tools=(TOOL, TOOL)) for one in (*calls, *chats[:4]))]
    return chats
