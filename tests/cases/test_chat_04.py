"""CHAT-04: rows of unusual order have a defined outcome, are counted, and too many stop the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.handlers import OddShape, get_handler
from mindspeed_llm.data.preprocess.command import PreprocessOptions, Summary, preprocess
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats

Turns = list[tuple[str, Any]]
CALL = {"name": "f", "arguments": {}}
# shape -> (turns, the roles kept or the rule by which the row is left out)
SHAPES: dict[str, tuple[Turns, str]] = {
    "good": ([("user", "a"), ("assistant", "b")], "user assistant"),
    "odd count": (
        [("user", "a"), ("assistant", "b"), ("user", "c")],
        "user assistant",
    ),
    "assistant first": (
        [("assistant", "a"), ("user", "b"), ("assistant", "c")],
        "does not begin with a user",
    ),
    "user twice": ([("user", "a"), ("user", "b"), ("assistant", "c")], "a role speaks twice"),
    "assistant twice": (
        [("user", "a"), ("assistant", "b"), ("assistant", "c")],
        "a role speaks twice",
    ),
    "system twice": (
        [("system", "s"), ("system", "s"), ("user", "a"), ("assistant", "b")],
        "system not first",
    ),
    "system inside": (
        [("user", "a"), ("system", "s"), ("assistant", "b")],
        "system not first",
    ),
    "empty system": ([("system", ""), ("user", "a"), ("assistant", "b")], "user assistant"),
    "empty question": ([("user", " \n"), ("assistant", "b")], "empty turn"),
    "empty answer": ([("user", "a"), ("assistant", "")], "empty turn"),
    "null content": ([("user", None), ("assistant", "b")], "empty turn"),
    "missing answer": ([("user", "a")], "no answer"),
    "system alone": ([("system", "s")], "no answer"),
    "no turns": ([], "empty row"),
    "result without a call": (
        [("user", "a"), ("tool", "r"), ("assistant", "b")],
        "tool result without a call",
    ),
    "result after an answer": (
        [("user", "a"), ("assistant", "b"), ("tool", "r"), ("assistant", "c")],
        "tool result without a call",
    ),
}


def row(turns: Turns) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_chat_04_each_shape_has_its_outcome(shape: str) -> None:
    turns, outcome = SHAPES[shape]
    handler = get_handler("OpenAIInstructionHandler")()
    try:
        sample = handler.sample(row(turns))
    except OddShape as error:
        assert error.rule == outcome
    else:
        assert " ".join(message.role for message in sample.messages) == outcome  # type: ignore[union-attr]
        assert handler.cut_turns == (shape == "odd count")


def test_chat_04_calls_results_and_empty_results_are_taken() -> None:
    handler = get_handler("OpenAIInstructionHandler")()
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": ""},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ]
    sample = handler.sample({"messages": messages})
    assert len(sample.messages) == 7  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    chats.keep_one_engine(monkeypatch)


def run(source: Path, tokenizer: Tokenizer, **options: Any) -> Summary:
    return preprocess(
        PreprocessOptions(
            str(source),
            str(source.parent / "out" / "x"),
            handler_name="OpenAIInstructionHandler",
            template={"prompt_type": "chatml"},
            **options,
        ),
        tokenizer,
    )


def test_chat_04_rows_left_out_are_counted_with_the_first_line(
    tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(turns) for turns, _ in SHAPES.values()]
    source = chats.write(tmp_path / "a.jsonl", rows)
    summary = run(source, tokenizer, max_dropped_share=0.9)
    kept = [name for name, (_, outcome) in SHAPES.items() if outcome == "user assistant"]
    assert summary.manifests["input_ids"].documents == len(kept)
    expected: dict[str, int] = {}
    for _, outcome in SHAPES.values():
        if outcome != "user assistant":
            expected[outcome] = expected.get(outcome, 0) + 1
    assert summary.tally.dropped == expected == summary.manifests["labels"].dropped
    assert summary.tally.noted == {"unanswered turns cut": 1}
    shown = capsys.readouterr().out
    for rule in expected:
        first = next(i for i, (_, o) in enumerate(SHAPES.values(), 1) if o == rule)
        assert f"{rule}: {expected[rule]} (first: {source}:{first})" in shown


def test_chat_04_too_many_left_out_stop_the_run(tmp_path: Path, tokenizer: Tokenizer) -> None:
    good, odd = (row(SHAPES[name][0]) for name in ("good", "user twice"))
    source = chats.write(tmp_path / "a.jsonl", [good] * 7 + [odd] * 3)
    with pytest.raises(UserError, match=r"3 of 10 records .*--max-dropped-share 0\.2") as caught:
        run(source, tokenizer)
    assert f"a role speaks twice: 3 (first: {source}:8)" in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert run(source, tokenizer, max_dropped_share=0.3).tally.kept == 7


def test_chat_04_nothing_left_is_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source = chats.write(tmp_path / "a.jsonl", [row(SHAPES["user twice"][0])] * 3)
    with pytest.raises(UserError, match="of 3 records nothing is left to train on"):
        run(source, tokenizer, max_dropped_share=1.0)


def test_chat_04_an_unknown_role_is_malformed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    good = row(SHAPES["good"][0])
    source = chats.write(tmp_path / "a.jsonl", [good, row([("human", "a")]), *[good] * 9])
    with pytest.raises(UserError, match=rf"{source}:2: a turn has the role .*'human'; known are"):
        run(source, tokenizer)
    summary = run(source, tokenizer, on_error="skip")
    assert (summary.skipped_bad, summary.tally.kept, summary.tally.read) == (1, 10, 11)
