"""Encode batches of texts to flat id arrays, by the fastest engine that agrees with transformers.

Three engines give the same ids: ``fastokens`` (many times the speed of the next; used where it
loads the tokenizer and agrees on a sample of the input and on odd Unicode), ``tokenizers``, and
the tokenizer's own Python code. ``fastokens`` raises where a vocabulary lacks a byte that
``tokenizers`` drops; such a document goes to ``tokenizers`` alone.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_llm.data.tokenizer import Tokenizer

# Texts on which tokenizers tend to differ: unassigned and private code points, joiners, combining
# marks, bidi marks, controls, byte-order marks, all kinds of spaces and digits, long runs.
ODD_TEXTS = (
    "a\x00b\x01\x1b\x7f\x80\x9f\xa0\xad",
    "\ufeffBOM \u200b\u200c\u200d\u2060 \u202e\u202c\u2028\u2029",
    "e\u0301\u0327 \u1e9b\u0323 \ufb01 \u212b \u0130i\u0307 \u00df\u1e9e",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e8\U0001f1f3 \U0001f44d\U0001f3fd \u263a\ufe0f \u263a\ufe0e",
    "\U000e0001\U000e0041 \U0010ffff \ue000 \u0378 \ufffd \ufffe",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3000\u4e00\u4e8c \U00020000 \u1100\u1161\u11a8 \uac01",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05c1\u05b8 \u0e20\u0e32\u0e29\u0e32",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u1019\u103c\u1014\u103a",
    "1234567890 ١٢٣ \u0967\u0968 \u00b2\u00bd\u2167 1,000.50 0x1F 3.14e-10",
    "don't I'LL we\u2019ve 'S 'T can''t \u02bcs",
    "  two   three\t\ttabs \n\n\n lines \r\n \r \u2003\u00a0 end   ",
    "        def f(x):\n            return x  # " + "=" * 80,
    "a" * 600 + " " * 300 + "\n" * 100 + "!?" * 100,
    "<s></s><unk><pad> <|endoftext|><|im_start|>user\n<|im_end|> [CLS][SEP][MASK] \u2581\u0120",
)
MAX_REFUSED_SHARE = 0.02


class EnginesDiffer(Exception):
    """The fast engine gave other ids than ``tokenizers`` for a document of the corpus."""


@dataclass(frozen=True)
class Encoded:
    """Ids of consecutive texts.

    Attributes:
        ids: [total] uint32 or int64, one text after the other.
        lengths: [texts] int64.
    """

    ids: np.ndarray
    lengths: np.ndarray


class Engine(ABC):
    """Encodes batches of texts.

    Attributes:
        name: tells the user which engine it is.
        why: why it is not a faster one; empty if there is nothing to say.
        added_per_text: tokens that the tokenizer adds to any text (BOS ...).
        fallback: the engine to start again with after :class:`EnginesDiffer`.
    """

    name = ""
    why = ""
    added_per_text = 0
    fallback: Engine | None = None

    @abstractmethod
    def encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> Encoded:
        """The ids of each text, as ``transformers``' ``tokenizer(text)`` gives them.

        Args:
            texts: the texts.
            add_special_tokens: False for text that holds its special tokens already (a chat).
        """

    def close(self) -> None:  # noqa: B027 (most engines hold nothing)
        """Release processes."""


def concatenate(parts: Iterable[list[int]]) -> Encoded:
    """Join lists of ids."""
    # An array takes a list three times as fast as numpy does. One list at a time: the next one's
    # ids then use the same memory, which is still in the processor's cache.
    ids, ends = array("I"), [0]
    for part in parts:
        ids.fromlist(part)
        ends.append(len(ids))
    return Encoded(np.frombuffer(ids, dtype=np.uint32), np.diff(np.array(ends, dtype=np.int64)))


def encode_with_transformers(
    tokenizer: Tokenizer, texts: Sequence[str], add_special_tokens: bool = True
) -> Encoded:
    """The ids as ``transformers`` gives them, which is the measure for every engine."""
    # verbose warns of texts that are longer than the model's context: they are cut later.
    return concatenate(
        tokenizer.hf(list(texts), add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
    )


class TokenizersEngine(Engine):
    """Hugging Face's ``tokenizers``, in all its threads."""

    name = "tokenizers"

    def __init__(self, backend_json: str) -> None:
        from tokenizers import Tokenizer as Backend

        self._backend = Backend.from_str(backend_json)
        # transformers turns both off for a plain call; a tokenizer.json may carry them.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.added_per_text = self._backend.num_special_tokens_to_add(False)

    def encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> Encoded:
        """The ids of each text."""
        encodings = self._backend.encode_batch_fast(
            list(texts), add_special_tokens=add_special_tokens
        )
        return concatenate(encoding.ids for encoding in encodings)


class FastokensEngine(Engine):
    """``fastokens``, with ``tokenizers`` for the documents that it refuses.

    One document of each batch goes through both, so that a difference which the start-up
    comparison did not meet cannot pass through a whole corpus.
    """

    name = "fastokens"

    def __init__(self, backend_json: str, reference: TokenizersEngine) -> None:
        import fastokens

        self._fast = fastokens.Tokenizer.from_json_str(backend_json)
        self._fast.no_truncation()
        self._fast.no_padding()
        self._reference = self.fallback = reference
        self.added_per_text = reference.added_per_text
        self._batches = 0
        self.forget()

    def encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> Encoded:
        """The ids of each text.

        Raises:
            EnginesDiffer: the two engines disagree.
        """
        texts = list(texts)
        self._documents += len(texts)
        if self.refused > max(100, MAX_REFUSED_SHARE * self._documents):
            # Its ids were right so far; looking for the texts it takes costs more than it gains.
            self.name = "fastokens, then tokenizers (fastokens refused many documents)"
            return self._reference.encode(texts, add_special_tokens)
        encoded = self._encode(texts, add_special_tokens)
        if texts:
            self._check_one(texts, encoded, add_special_tokens)
        return encoded

    def forget(self) -> None:
        """Start the counts of documents and refusals anew."""
        self._documents = self.refused = 0

    def _encode(self, texts: list[str], special: bool) -> Encoded:
        try:
            ids, offsets = self._fast.encode_batch_flat(texts, add_special_tokens=special)
        except Exception:
            # It tells no type of error apart; halving finds the documents it cannot take.
            if len(texts) == 1:
                self.refused += 1
                return self._reference.encode(texts, special)
            half = len(texts) // 2
            left, right = self._encode(texts[:half], special), self._encode(texts[half:], special)
            return Encoded(
                np.concatenate([left.ids, right.ids]),
                np.concatenate([left.lengths, right.lengths]),
            )
        return Encoded(
            np.frombuffer(ids, dtype="<u4"), np.diff(np.frombuffer(offsets, "<u8").astype(np.int64))
        )

    def _check_one(self, texts: list[str], encoded: Encoded, special: bool) -> None:
        self._batches += 1
        # A stride that is prime to most batch lengths picks another place each time. Long
        # documents are passed over: the check must stay a small share of the work.
        index = (self._batches * 7919) % len(texts)
        if len(texts[index]) > 1 << 15:
            index = min(range(len(texts)), key=lambda i: len(texts[i]))
            if len(texts[index]) > 1 << 15:
                return
        start = int(encoded.lengths[:index].sum())
        mine = encoded.ids[start : start + int(encoded.lengths[index])]
        if not np.array_equal(mine, self._reference.encode([texts[index]], special).ids):
            raise EnginesDiffer(f"the two engines differ on {texts[index][:60]!r}")


_worker_tokenizer: Any = None


def _start_worker(folder: str, use_fast: bool, trust_remote_code: bool) -> None:
    from mindspeed_llm.data.tokenizer import load_hf_tokenizer

    global _worker_tokenizer
    _worker_tokenizer = load_hf_tokenizer(Path(folder), use_fast, trust_remote_code)


def _encode_in_worker(texts: list[str], add_special_tokens: bool) -> Encoded:
    return encode_with_transformers(_worker_tokenizer, texts, add_special_tokens)


class PythonEngine(Engine):
    """A tokenizer without a ``tokenizers`` form: its own code, in several processes."""

    def __init__(
        self, tokenizer: Tokenizer, workers: int, use_fast: bool, trust_remote_code: bool
    ) -> None:
        import multiprocessing

        self.name = f"the tokenizer's own Python code in {workers} processes"
        self.added_per_text = tokenizer.hf.num_special_tokens_to_add()
        self._workers = workers
        # Spawned, because this process may hold threads of torch or of an engine.
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(str(tokenizer.folder), use_fast, trust_remote_code),
        )

    def encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> Encoded:
        """The ids of each text."""
        texts = list(texts)
        # A few shares per worker even out documents of unequal length.
        size = max(1, -(-len(texts) // (4 * self._workers)))
        shares = [texts[start : start + size] for start in range(0, len(texts), size)]
        parts = list(self._pool.map(_encode_in_worker, shares, [add_special_tokens] * len(shares)))
        if not parts:
            return concatenate([])
        return Encoded(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.lengths for part in parts]),
        )

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


def set_threads(workers: int) -> None:
    """Let the Rust engines use ``workers`` threads; has an effect before their first use only."""
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"


def choose_engine(
    tokenizer: Tokenizer,
    sample: Sequence[str],
    workers: int,
    use_fast: bool = True,
    trust_remote_code: bool = False,
) -> Engine:
    """Choose the fastest engine that agrees with ``transformers``.

    Args:
        tokenizer: the loaded tokenizer.
        sample: texts of the actual input.
        workers: threads, or processes for a Python tokenizer.
        use_fast: False for ``--tokenizer-not-use-fast``.
    """
    if not tokenizer.is_fast:
        python = PythonEngine(tokenizer, workers, use_fast, trust_remote_code)
        python.why = "this tokenizer has no fast form" if use_fast else ""
        return python
    backend = tokenizer.backend_json()
    plain = TokenizersEngine(backend)
    texts = [*ODD_TEXTS, *special_texts(tokenizer), *sample]
    if not agrees_with_transformers(plain, tokenizer, texts):
        python = PythonEngine(tokenizer, workers, use_fast, trust_remote_code)
        python.why = "transformers adds steps of its own to this tokenizer"
        return python
    try:
        fast = FastokensEngine(backend, plain)
    except Exception as error:
        # It tells no type of error apart, and anything it cannot load has a second way.
        words = " ".join(str(error).split())[:120]
        plain.why = f"fastokens does not load this tokenizer: {words}"
        return plain
    try:
        ours, theirs = fast.encode(texts), plain.encode(texts)
    except EnginesDiffer as error:
        plain.why = str(error)
        return plain
    if not same(ours, theirs):
        plain.why = f"fastokens differs on {first_difference(texts, ours, theirs)!r}"
        return plain
    fast.forget()
    return fast


def special_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts with special and added tokens written out, alone and amid others."""
    added = sorted(tokenizer.hf.get_added_vocab())[:200]
    return [text for token in added for text in (token, f"a{token}b", f" {token} ", f"{token}\n\n")]


def agrees_with_transformers(
    engine: TokenizersEngine, tokenizer: Tokenizer, texts: Sequence[str]
) -> bool:
    """Whether the bare engine gives what ``tokenizer(text)`` of ``transformers`` gives."""
    return same(engine.encode(texts), encode_with_transformers(tokenizer, texts))


def same(one: Encoded, other: Encoded) -> bool:
    """Whether two encodings are equal."""
    return np.array_equal(one.lengths, other.lengths) and np.array_equal(one.ids, other.ids)


def first_difference(texts: Sequence[str], one: Encoded, other: Encoded) -> str:
    """The start of the first text that two engines encode differently."""
    mine = np.split(one.ids, np.cumsum(one.lengths)[:-1])
    theirs = np.split(other.ids, np.cumsum(other.lengths)[:-1])
    for text, a, b in zip(texts, mine, theirs, strict=True):
        if not np.array_equal(a, b):
            return text[:60]
    return ""
