"""The trained tokens of spans, against the offsets of ``tokenizers``, on odd texts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mindspeed_llm.data.encoder import PythonEngine, TokenizersEngine, choose_engine
from mindspeed_llm.data.templates import ChatEncoder, Rendered
from mindspeed_llm.data.templates.byte_lengths import byte_lengths
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests import real_inputs
from tests.data import small

# Combining marks, characters of one to four bytes, the mark for a space, special tokens.
POOL = (
    *("ab", " ", "  ", "\n", "é", "e\u0301", "漢", "😀", "𠀀", "ﬁ"),
    *("12", "▁", "<|im_end|>", "</s>"),
)


def random_samples(count: int) -> list[Rendered]:
    """Odd texts with spans anywhere, also within characters' tokens."""
    draw = random.Random(0)
    samples = []
    for _ in range(count):
        text = "".join(draw.choices(POOL, k=draw.randrange(1, 30)))
        cuts = sorted(draw.sample(range(len(text) + 1), min(4, len(text) + 1)))
        spans = tuple(zip(cuts[::2], cuts[1::2], strict=False))
        samples.append(Rendered(text, spans))
    return [*samples, Rendered("nothing trained", ())]


def check(tokenizer: Tokenizer, encoder: ChatEncoder, samples: list[Rendered]) -> None:
    encoded = encoder.encode(samples)
    start = span = 0
    for sample, length, count in zip(samples, encoded.lengths, encoded.span_counts, strict=True):
        expected = tokenizer.hf.backend_tokenizer.encode(sample.text, add_special_tokens=False)
        assert encoded.ids[start : start + length].tolist() == expected.ids
        trained = [
            any(end > first and begin < last for first, last in sample.spans)
            for begin, end in expected.offsets
        ]
        assert encoded.trained[start : start + length].tolist() == trained, sample
        assert count == len(sample.spans)
        start, span = start + length, span + count
    assert (start, span) == (encoded.ids.size, len(encoded.spans))


@pytest.mark.parametrize("name", ["byte_level", "with_bos", "lacking_bytes", "metaspace"])
def test_spans_of_odd_texts(name: str) -> None:
    tokenizer = load_hf_tokenizer(small.ALL[name]())
    encoder = ChatEncoder(TokenizersEngine(tokenizer.backend_json()), tokenizer)
    check(tokenizer, encoder, random_samples(150))
    assert encoder.encode([]).ids.size == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_spans_with_real_tokenizers_and_their_engine(name: str) -> None:
    """Among them a vocabulary after NFC, and one that spells a space as U+2581."""
    tokenizer = load_hf_tokenizer(real_inputs.tokenizer(name))
    engine = choose_engine(tokenizer, ["Hello"], workers=2)
    assert byte_lengths(tokenizer.backend_json()) is not None
    check(tokenizer, ChatEncoder(engine, tokenizer), random_samples(400))


def test_a_tokenizers_own_start_token_is_not_added() -> None:
    tokenizer = load_hf_tokenizer(small.ALL["with_bos"]())
    assert tokenizer.encode("ab")[0] == tokenizer.bos
    encoder = ChatEncoder(TokenizersEngine(tokenizer.backend_json()), tokenizer)
    bos = tokenizer.hf.bos_token
    encoded = encoder.encode([Rendered(f"{bos}ab", ()), Rendered("ab", ())])
    assert encoded.ids.tolist().count(tokenizer.bos) == 1


@pytest.mark.slow
def test_a_tokenizer_in_python() -> None:
    """It tells no offsets: the tokens of a span are found by decoding."""
    tokenizer = load_hf_tokenizer(small.ALL["python_only"]())
    engine = PythonEngine(tokenizer, 1, use_fast=True, trust_remote_code=False)
    try:
        sample = Rendered("one two three", ((4, 7),))
        encoded = ChatEncoder(engine, tokenizer).encode([sample])
        assert tokenizer.decode(encoded.ids[encoded.trained].tolist()) == "two"
        assert np.array_equal(encoded.spans, [[4, 7]])  # its tokens are bytes
    finally:
        engine.close()
