"""Documents of pretraining: texts encoded as they stand, empty ones left out and counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.readers import Batch


@dataclass
class Skipped:
    """Empty documents left out: how many, and where the first one was."""

    empty: int = 0
    first: str = ""


@dataclass
class PlainText:
    """Encodes the texts of each column.

    A document that is null, empty, only white space, or without a token of its own (a text that
    the tokenizer's normaliser deletes) is left out and counted: it would be a lone end token.

    Attributes:
        engine: encodes texts.
        eod: the token to end each document with; None for none.
        added_per_text: tokens that the tokenizer adds to any text (BOS ...).
    """

    engine: Engine
    eod: int | None = None
    added_per_text: int = 0
    skipped: Skipped = field(default_factory=Skipped)

    def encode(self, batch: Batch) -> dict[str, Encoded]:
        """Turn a batch of texts into documents, for each column."""
        return {key: self._documents(batch, key) for key in batch.columns}

    def _documents(self, batch: Batch, key: str) -> Encoded:
        column = batch.columns[key]
        texts = [text for text in column if text and not text.isspace()]
        if len(texts) < len(column):
            empty = next(i for i, text in enumerate(column) if not text or text.isspace())
            self._skip(batch, empty, len(column) - len(texts))
        encoded = self.engine.encode(texts)
        bare = encoded.lengths <= self.added_per_text
        if bare.any():
            text = texts[int(bare.argmax())]
            self._skip(batch, column.index(text), int(bare.sum()))
            encoded = Encoded(
                encoded.ids[~np.repeat(bare, encoded.lengths)], encoded.lengths[~bare]
            )
        return encoded if self.eod is None else with_end_tokens(encoded, self.eod)

    def _skip(self, batch: Batch, index: int, count: int) -> None:
        self.skipped.empty += count
        self.skipped.first = self.skipped.first or batch.place(index)


def with_end_tokens(encoded: Encoded, eod: int) -> Encoded:
    """Append ``eod`` to each text; the lengths count it."""
    lengths = encoded.lengths + 1
    ends = np.cumsum(lengths) - 1
    ids = np.empty(encoded.ids.size + lengths.size, dtype=encoded.ids.dtype)
    ids[ends] = eod
    keep = np.ones(ids.size, dtype=bool)
    keep[ends] = False
    ids[keep] = encoded.ids
    return Encoded(ids, lengths)
