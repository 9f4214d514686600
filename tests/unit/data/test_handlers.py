"""What each handler makes of records, up to the files that megatron-core's reader reads back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message, Pair, ToolCall
from mindspeed_llm.data.handlers import HANDLERS, Malformed, get_handler
from mindspeed_llm.data.preprocess.command import PreprocessOptions, Summary, preprocess
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats

CHATML = {"prompt_type": "chatml"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    chats.keep_one_engine(monkeypatch)


def run(source: Path, handler: str, tokenizer: Tokenizer, **options: Any) -> Summary:
    options = {"template": CHATML, **options}
    prefix = str(source.parent / "out" / "x")
    return preprocess(
        PreprocessOptions(str(source), prefix, handler_name=handler, **options), tokenizer
    )


EXPECTED = [chats.reference(turns) for turns in chats.CHATS]


# One handler a format is quick enough for every run of the tests.
QUICK = {("AlpacaStyleInstructionHandler", "csv"), ("SharegptStyleInstructionHandler", "parquet")}
QUICK |= {("OpenAIInstructionHandler", "jsonl"), ("AlpacaStyleInstructionHandler", "json")}
GRID = [
    pytest.param(handler, kind, marks=[] if (handler, kind) in QUICK else pytest.mark.slow)
    for handler in chats.HANDLERS
    for kind in chats.FORMATS
]


@pytest.mark.parametrize(("handler", "kind"), GRID)
def test_every_format_and_handler_gives_the_reference_encoding(
    tmp_path: Path, tokenizer: Tokenizer, handler: str, kind: str
) -> None:
    rows = [chats.HANDLERS[handler](turns) for turns in chats.CHATS]
    source = chats.write(tmp_path / f"a.{kind}", rows)
    workers = 1 if kind in ("jsonl", "parquet") else 4
    summary = run(source, handler, tokenizer, workers=workers)
    assert chats.samples(tmp_path / "out" / "x") == EXPECTED
    note = summary.manifests["input_ids"]
    assert (note.kind, note.handler, note.read, note.documents) == ("instruction", handler, 5, 5)
    assert note.template is not None and note.template["name"] == "chatml"


def test_a_folder_of_all_formats_in_the_order_of_names(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    rows = [chats.openai(turns) for turns in chats.CHATS]
    for number, kind in enumerate(chats.FORMATS):
        chats.write(tmp_path / "in" / f"{number}.{kind}", rows)
    run(tmp_path / "in", "OpenAIInstructionHandler", tokenizer)
    assert chats.samples(tmp_path / "out" / "x") == EXPECTED * len(chats.FORMATS)


def test_dotted_path_to_nested_turns(tmp_path: Path, tokenizer: Tokenizer) -> None:
    keys = json.dumps({"messages": "data.chat", "tools": ""})
    for kind in ("jsonl", "parquet"):
        rows = [{"data": {"chat": chats.openai(turns)["messages"]}} for turns in chats.CHATS]
        source = chats.write(tmp_path / kind / f"a.{kind}", rows)
        run(source, "OpenAIInstructionHandler", tokenizer, map_keys=keys)
        assert chats.samples(tmp_path / kind / "out" / "x") == EXPECTED


def test_map_keys_of_the_reference(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The two examples in its documentation, and "" for no column."""
    rows = [{"notice": "a", "question": "b", "answer": "c", "s": "sys", "h": [["1", "2"]]}]
    names = {"prompt": "notice", "query": "question", "response": "answer"}
    names |= {"system": "s", "history": "h"}
    source = chats.write(tmp_path / "a.jsonl", rows)
    run(source, "AlpacaStyleInstructionHandler", tokenizer, map_keys=json.dumps(names))
    turns = [("system", "sys"), ("user", "1"), ("assistant", "2"), ("user", "a\nb")]
    assert chats.samples(tmp_path / "out" / "x") == [chats.reference([*turns, ("assistant", "c")])]
    run(
        source,
        "AlpacaStyleInstructionHandler",
        tokenizer,
        map_keys=json.dumps({**names, "query": "", "history": "", "system": ""}),
    )
    assert chats.samples(tmp_path / "out" / "x") == [
        chats.reference([("user", "a"), ("assistant", "c")])
    ]


def test_sharegpt_handler_reads_openai_turns_by_tags(tmp_path: Path, tokenizer: Tokenizer) -> None:
    keys = {
        "messages": "messages",
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
            "system_tag": "system",
        },
    }
    source = chats.write(tmp_path / "a.jsonl", [chats.openai(turns) for turns in chats.CHATS])
    run(source, "SharegptStyleInstructionHandler", tokenizer, map_keys=json.dumps(keys))
    assert chats.samples(tmp_path / "out" / "x") == EXPECTED


def pair_rows(style: str) -> list[dict[str, Any]]:
    turns = [("system", "s"), ("user", "q")]
    if style == "alpaca":
        return [{"instruction": "q", "system": "s", "chosen": "good", "rejected": "bad"}]
    row = chats.sharegpt(turns)
    return [
        {
            **row,
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        }
    ]


@pytest.mark.parametrize("style", ["alpaca", "sharegpt"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_pairs_keep_the_better_and_the_worse_answer_apart(
    tmp_path: Path, tokenizer: Tokenizer, style: str, kind: str
) -> None:
    source = chats.write(tmp_path / f"a.{kind}", pair_rows(style))
    summary = run(source, f"{style.capitalize()}StylePairwiseHandler", tokenizer)
    question = [("system", "s"), ("user", "q")]
    for which, answer in (("chosen", "good"), ("rejected", "bad")):
        ids, labels = chats.reference([*question, ("assistant", answer)])
        prefix = tmp_path / "out" / "x_packed_"
        assert chats.stored(f"{prefix}{which}_input_ids_document") == [ids]
        assert chats.stored(f"{prefix}{which}_labels_document") == [labels]
    assert summary.manifests["chosen_labels"].kind == "pairwise"
    assert list(summary.prefixes) == [
        "chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels",
    ]  # fmt: skip


def test_answers_of_a_pair_given_as_a_list_are_its_first(tokenizer: Tokenizer) -> None:
    handler = get_handler("AlpacaStylePairwiseHandler")()
    record = {"instruction": "q", "chosen": ["good", "2nd"], "rejected": ["bad", "worse"]}
    sample = handler.sample(record)
    assert isinstance(sample, Pair)
    assert (sample.chosen.content, sample.rejected.content) == ("good", "bad")


def test_prompts_for_reinforcement_learning(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = [{"instruction": "q", "output": "42", "level": "hard"}]
    source = chats.write(tmp_path / "a.jsonl", rows)
    prompt = tokenizer.hf.encode("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n")
    answer, level = (tokenizer.hf.encode(text) for text in ("42", "hard"))
    prefix = f"{tmp_path}/out/x_packed_"
    run(source, "PPOAlpacaStyleInstructionHandler", tokenizer)
    assert chats.stored(f"{prefix}input_ids_document") == [prompt]
    assert not Path(f"{prefix}labels_document.idx").exists()
    run(source, "R1AlpacaStyleInstructionHandler", tokenizer, dataset_additional_keys=("level",))
    assert chats.stored(f"{prefix}input_ids_document") == [prompt]
    assert chats.stored(f"{prefix}labels_document") == [answer]
    assert chats.stored(f"{prefix}level_document") == [level]
    turns = [("user", "q"), ("assistant", "42")]
    source = chats.write(tmp_path / "b.jsonl", [chats.sharegpt(turns)])
    run(source, "R1SharegptStyleInstructionHandler", tokenizer)
    assert chats.stored(f"{prefix}input_ids_document") == [prompt]
    assert chats.stored(f"{prefix}labels_document") == [answer]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "json"])
def test_pretraining_on_instructions_and_chats(
    tmp_path: Path, tokenizer: Tokenizer, kind: str
) -> None:
    source = chats.write(
        tmp_path / f"a.{kind}",
        [
            {"instruction": "Add", "input": "", "output": "3"},
            {"instruction": "Add", "input": "1 2", "output": "3"},
        ],
    )
    run(source, "AlpacaPretrainHandler", tokenizer, template={}, append_eod=True)
    texts = [
        tokenizer.decode(ids[:-1]) for ids in chats.stored(tmp_path / "out" / "x_text_document")
    ]
    assert texts[0].endswith("USER: Add ASSISTANT: 3")
    assert texts[1].endswith("USER: Add\n###\n1 2 ASSISTANT: 3")
    assert "None" not in "".join(texts)
    source = chats.write(tmp_path / f"b.{kind}", [chats.sharegpt(turns) for turns in chats.CHATS])
    run(source, "SharegptPretrainHandler", tokenizer, template={})
    texts = [tokenizer.decode(ids) for ids in chats.stored(tmp_path / "out" / "x_text_document")]
    assert texts == ["\n".join(t for r, t in turns if r != "system") for turns in chats.CHATS]


def test_tool_calls_and_reasoning_of_openai_records() -> None:
    handler = get_handler("OpenAIInstructionHandler")()
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": "four", "weight": 0},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"x": None}}}]
    for given in (tools, json.dumps(tools)):
        sample = handler.sample({"messages": messages, "tools": given})
        assert sample == Conversation(
            (
                Message("system", "s"),
                Message("user", "ab"),
                Message("assistant", "", "hm", (ToolCall("f", {"x": 1}, "c1"),)),
                Message("tool", "4", tool_call_id="c1", name="f"),
                Message("assistant", "four", trained=False),
            ),
            ({"type": "function", "function": {"name": "f", "parameters": {}}},),
        )


def test_function_calls_of_sharegpt_records() -> None:
    handler = get_handler("SharegptStyleInstructionHandler")()
    turns = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "four"},
    ]
    sample = handler.sample({"conversations": turns, "system": "s"})
    assert isinstance(sample, Conversation)
    assert [message.role for message in sample.messages] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert sample.messages[2].tool_calls == (ToolCall("f", {"x": 1}),)


WRONG_KEYS = [
    ("AlpacaStyleInstructionHandler", "{", "not JSON"),
    ("AlpacaStyleInstructionHandler", "[1]", "a list, not an object"),
    ("AlpacaStyleInstructionHandler", '{"promt": "x"}', 'no name "promt"; there is prompt'),
    ("AlpacaStyleInstructionHandler", '{"prompt": 3}', '"prompt" is a number'),
    ("AlpacaStyleInstructionHandler", '{"response": ""}', '"response" of .* needs a column'),
    ("SharegptStyleInstructionHandler", '{"tags": {"user": "x"}}', 'no name "user".*user_tag'),
    ("SharegptStyleInstructionHandler", '{"tags": {"user_tag": "gpt"}}', "the same name"),
]


@pytest.mark.parametrize(("handler", "keys", "words"), WRONG_KEYS)
def test_wrong_map_keys_say_what_there_is(handler: str, keys: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        get_handler(handler)(keys)


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_every_handler_documents_its_records(name: str) -> None:
    assert len(HANDLERS[name].__doc__ or "") > 60


def test_a_mistyped_handler_is_told_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean AlpacaStyleInstructionHandler"):
        get_handler("AlpacaStyleInstructHandler")
    with pytest.raises(UserError, match="SharegptStyleInstructionHandler on turns with roles"):
        get_handler("MOSSMultiTurnHandler")


MALFORMED: list[tuple[str, dict[str, Any], str]] = [
    ("AlpacaStyleInstructionHandler", {"instruction": 1, "output": "x"}, "a number, not a string"),
    (
        "AlpacaStyleInstructionHandler",
        {"instruction": "a", "output": "x", "history": [["only"]]},
        "no pair of texts",
    ),
    (
        "AlpacaStyleInstructionHandler",
        {"instruction": "a", "output": "x", "history": "no list"},
        "holds no JSON list",
    ),
    ("SharegptStyleInstructionHandler", {"conversations": {"a": 1}}, "an object, not a list"),
    ("SharegptStyleInstructionHandler", {"conversations": ["a"]}, "a string where a turn"),
    (
        "SharegptStyleInstructionHandler",
        {"conversations": [{"from": "humann", "value": "x"}]},
        "'humann'; known are: human, gpt",
    ),
    (
        "SharegptStyleInstructionHandler",
        {"conversations": [{"from": "function_call", "value": "f(x)"}]},
        "holds no JSON",
    ),
    (
        "OpenAIInstructionHandler",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        r"no text \(image_url\)",
    ),
    (
        "OpenAIInstructionHandler",
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
        'no "name"',
    ),
    (
        "OpenAIInstructionHandler",
        {"messages": [{"role": "user", "content": "a"}], "tools": [1]},
        "no answer|a number where a function",
    ),
]


@pytest.mark.parametrize(("handler", "record", "words"), MALFORMED)
def test_records_of_another_schema_are_malformed(
    handler: str, record: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        get_handler(handler)().sample(record)
    assert isinstance(caught.value, Malformed) or "no answer" in words
