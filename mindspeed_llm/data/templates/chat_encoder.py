"""Encode conversations: the ids of the whole text, and which of them are trained."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.templates.byte_lengths import byte_lengths
from mindspeed_llm.data.templates.template import Rendered
from mindspeed_llm.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# The label of a token that is not trained.
IGNORE = -100


@dataclass(frozen=True)
class EncodedChats:
    """Tokens of consecutive samples.

    A sample may be cut after any token: what is left of ``ids`` and ``labels`` still belongs
    together, and a span that reaches beyond the cut has lost the token that ends the turn.

    Attributes:
        ids: [total] int32, one sample after the other.
        lengths: [samples] int64.
        trained: [total] bool, whether the loss is taken on the token itself (as a target).
        spans: [spans, 2] int64, ``[start, end)`` in ``ids`` of each trained span, in order; the
            token before ``end`` ends the turn.
        span_counts: [samples] int64, how many spans each sample has.
    """

    ids: np.ndarray
    lengths: np.ndarray
    trained: np.ndarray
    spans: np.ndarray
    span_counts: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """[total] int32: the id where it is trained, else :data:`IGNORE`; not shifted."""
        return np.where(self.trained, self.ids, np.int32(IGNORE))


class ChatEncoder:
    """Encodes rendered conversations in batches.

    The whole text is encoded at once, without the tokens that a tokenizer adds to a text of
    itself: the ids are those of ``apply_chat_template``, and a BOS stands once, where the template
    writes it. A token that reaches over the start or the end of a span is trained.

    Args:
        engine: encodes texts.
        tokenizer: the same tokenizer.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._lengths = byte_lengths(tokenizer.backend_json()) if tokenizer.is_fast else None

    def encode(self, rendered: Sequence[Rendered]) -> EncodedChats:
        """The ids and the trained tokens of each sample.

        Raises:
            EnginesDiffer: as the engine's ``encode``.
            UserError: a tokenizer in Python whose tokens do not spell the text.
        """
        encoded = self._engine.encode([one.text for one in rendered], add_special_tokens=False)
        counts = np.array([len(one.spans) for one in rendered], dtype=np.int64)
        spans = self._token_spans(rendered, encoded, counts)
        return EncodedChats(
            encoded.ids.astype(np.int32),
            encoded.lengths,
            covered(spans, encoded.ids.size),
            spans,
            counts,
        )

    def _token_spans(
        self, rendered: Sequence[Rendered], encoded: Encoded, counts: np.ndarray
    ) -> np.ndarray:
        """[spans, 2]: the tokens of each span."""
        ends = np.cumsum(encoded.lengths)
        if self._lengths is None:
            parts = [
                self._spans_of(one, encoded.ids[end - length : end], int(end - length))
                for one, end, length in zip(rendered, ends, encoded.lengths, strict=True)
            ]
            return _pairs(parts)
        places = np.cumsum(self._lengths.table[encoded.ids])  # where each token ends, in bytes
        bounds = np.zeros(len(rendered) + 1, dtype=np.int64)
        np.take(np.concatenate([[0], places]), ends, out=bounds[1:])
        sizes, wanted = zip(*map(_byte_spans, rendered), strict=True) if rendered else ((), ())
        starts = np.repeat(bounds[:-1], counts)[:, None]
        wanted_places = _pairs(wanted) + starts
        spans = np.stack(
            [
                np.searchsorted(places, wanted_places[:, 0], side="right"),
                np.searchsorted(places, wanted_places[:, 1], side="left") + 1,
            ],
            axis=1,
        )
        adds_up = np.diff(bounds) == np.array(sizes, dtype=np.int64)
        adds_up &= np.array([self._lengths.fits(one.text) for one in rendered], dtype=bool)
        first = np.cumsum(counts) - counts
        for index in np.flatnonzero(~adds_up).tolist():
            end, length = int(ends[index]), int(encoded.lengths[index])
            mended = self._spans_of(rendered[index], encoded.ids[end - length : end], end - length)
            spans[first[index] : first[index] + counts[index]] = mended
        return spans

    def _spans_of(self, one: Rendered, ids: np.ndarray, start: int) -> list[tuple[int, int]]:
        """The tokens of the spans of one text, by offsets."""
        if not one.spans:
            return []
        if not self._tokenizer.is_fast:
            return [(start + a, start + b) for a, b in self._spelled(one, ids)]
        encoding = self._backend.encode(one.text, add_special_tokens=False)
        if encoding.ids != ids.tolist():
            raise AssertionError("tokenizers and the engine differ")
        offsets = np.array(encoding.offsets, dtype=np.int64)
        found = []
        for first, last in one.spans:
            inside = np.flatnonzero((offsets[:, 1] > first) & (offsets[:, 0] < last))
            if inside.size:
                found.append((start + int(inside[0]), start + int(inside[-1]) + 1))
            else:  # the tokenizer drops the characters
                before = start + int((offsets[:, 1] <= first).sum())
                found.append((before, before))
        return found

    @cached_property
    def _backend(self) -> Backend:
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_str(self._tokenizer.backend_json())
        backend.no_truncation()
        backend.no_padding()
        return backend

    def _spelled(self, one: Rendered, ids: np.ndarray) -> list[tuple[int, int]]:
        """The tokens of the spans where a tokenizer in Python tells no offsets: by decoding."""
        tokens = ids.tolist()
        if self._tokenizer.decode(tokens) != one.text:
            raise UserError(
                f"{self._tokenizer.folder}: this tokenizer runs in Python and its tokens do not "
                f"spell the text of a conversation ({one.text[:60]!r}), so the trained part "
                "cannot be told. Use a tokenizer with a tokenizer.json."
            )

        def spelled(count: int) -> int:
            # A character that is not whole yet decodes to U+FFFD.
            return len(self._tokenizer.decode(tokens[:count]).rstrip("\ufffd"))

        counts = range(len(tokens) + 1)
        found = []
        for first, last in one.spans:
            start = bisect.bisect_right(counts, first, key=spelled) - 1
            found.append((start, bisect.bisect_left(counts, last, key=spelled)))
        return found


def covered(spans: np.ndarray, size: int) -> np.ndarray:
    """[size] bool: which tokens lie in a span."""
    steps = np.zeros(size + 1, dtype=np.int8)
    np.add.at(steps, spans[:, 0], 1)
    np.subtract.at(steps, spans[:, 1], 1)
    return np.cumsum(steps[:-1], dtype=np.int8) > 0


def _byte_spans(one: Rendered) -> tuple[int, list[tuple[int, int]]]:
    """The size of a text and its spans, in bytes."""
    text = one.text
    if text.isascii():
        return len(text), list(one.spans)
    position = size = 0
    spans = []
    for first, last in one.spans:
        start = size + len(text[position:first].encode())
        size = start + len(text[first:last].encode())
        position = last
        spans.append((start, size))
    return size + len(text[position:].encode()), spans


def _pairs(parts: Iterable[Iterable[tuple[int, int]]]) -> np.ndarray:
    """[spans, 2] int64."""
    return np.array([*chain.from_iterable(parts)], dtype=np.int64).reshape(-1, 2)
