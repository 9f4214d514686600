"""End tokens, text as it comes, and where prompts come from."""

from __future__ import annotations

import json

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
from mindspeed_llm.inference.generate import Transcript
from mindspeed_llm.inference.text import TextStream, end_tokens
from tests.data.small import byte_level


@pytest.fixture(scope="module")
def tokenizer():
    return load_hf_tokenizer(byte_level())


TEXTS = ["plain words", "数据并行 and 🙂🙃 mixed", "e\u0301 \u200d👩\u200d👧!", "\ufffd"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prompt", ["", "Once upon", "半"])
def test_pieces_hold_whole_characters_and_join_to_the_answer(tokenizer, text, prompt) -> None:
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer.decode, tokenizer.encode(prompt))
    pieces = [stream.push(token) for token in ids]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text


def test_an_answer_cut_inside_a_character_still_ends(tokenizer) -> None:
    ids = tokenizer.encode("ab🙂")[:-1]
    stream = TextStream(tokenizer.decode, [])
    shown = "".join(stream.push(token) for token in ids)
    assert shown == "ab"
    assert shown + stream.finish() == tokenizer.decode(ids)


def test_all_end_tokens_of_the_model_count(tokenizer, tmp_path) -> None:
    """The three files disagree, as those of chat models do; each token ends an answer."""
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 11}))
    single = tokenizer.decode([200])
    found = end_tokens([None, tmp_path], tokenizer, [single])
    assert set(found) == {7, 9, 11, tokenizer.eod, *tokenizer.encode(single)}
    assert found[9] == "generation_config.json"
    assert found[11] == "config.json"


def test_bad_end_tokens_are_user_errors(tokenizer, tmp_path) -> None:
    with pytest.raises(UserError, match="tokens for this tokenizer"):
        end_tokens([], tokenizer, ["two words, many tokens"])
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match="not a JSON object"):
        end_tokens([tmp_path], tokenizer)


def test_transcript_keeps_the_order_of_the_prompts(tokenizer, capsys) -> None:
    from mindspeed_llm.inference.engine import NewToken, Request

    answers = [tokenizer.encode(" first answer"), tokenizer.encode(" second")]
    requests = [Request([5], 9), Request([6], 9)]
    transcript = Transcript(tokenizer, ("one", "two"), requests, live=True)
    # The second prompt's answer is complete before the first one's.
    for token in answers[1]:
        transcript.add(NewToken(1, token, None, None), ends=False)
    transcript.add(NewToken(1, tokenizer.eod, None, "stop"), ends=True)
    assert "second" not in capsys.readouterr().out
    for token in answers[0][:-1]:
        transcript.add(NewToken(0, token, None, None), ends=False)
    assert "first" in capsys.readouterr().out
    transcript.add(NewToken(0, answers[0][-1], None, "length"), ends=False)
    out = capsys.readouterr().out
    assert out.endswith("\n\nYou:\ntwo\n\nMindSpeed-LLM:\n second\n")
