"""Handlers: what becomes of a record. Chosen by name with ``--handler-name``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.readers import Batch

DEFAULT_HANDLER = "GeneralPretrainHandler"

# Handlers of the same suite of formats that cannot be used yet: refused by name, so that nobody
# trains on data that was read as something else.
NOT_YET = (
    "AlpacaPretrainHandler",
    "SharegptPretrainHandler",
    "StackOverflowPythonPretrainHandler",
    "LlamaFactoryInstructionHandler",
    "AlpacaStyleInstructionHandler",
    "SharegptStyleInstructionHandler",
    "OpenAIInstructionHandler",
    "HunyuanInstructionHandler",
    "AlpacaStylePairwiseHandler",
    "SharegptStylePairwiseHandler",
    "PPOAlpacaStyleInstructionHandler",
    "R1AlpacaStyleInstructionHandler",
    "R1SharegptStyleInstructionHandler",
    "GeneralInstructionHandler",
    "BelleMultiTurnInstructionHandler",
    "MOSSInstructionHandler",
    "MOSSMultiTurnHandler",
    "LeetcodePythonInstructionHandler",
)


@dataclass
class Skipped:
    """Empty documents left out: how many, and where the first one was."""

    empty: int = 0
    first: str = ""


@dataclass
class GeneralPretrainHandler:
    """Each key of a record is a text of its own, tokenized as it stands.

    A document that is null, empty, only white space, or without a token of its own (a text that
    the tokenizer's normaliser deletes) is left out and counted: it would be a lone end token.

    Attributes:
        engine: encodes texts.
        keys: the record's keys, one data set each.
        eod: the token to end each document with; None for none.
        added_per_text: tokens that the tokenizer adds to any text (BOS ...).
    """

    engine: Engine
    keys: Sequence[str]
    eod: int | None = None
    added_per_text: int = 0
    skipped: Skipped = field(default_factory=Skipped)

    def encode(self, batch: Batch) -> dict[str, Encoded]:
        """Turn a batch of records into documents, for each key."""
        return {key: self._documents(batch, key) for key in self.keys}

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


HANDLERS: dict[str, Callable[..., GeneralPretrainHandler]] = {
    DEFAULT_HANDLER: GeneralPretrainHandler,
}


def get_handler(name: str | None) -> Callable[..., GeneralPretrainHandler]:
    """The handler called ``name``; the default one for no name.

    Raises:
        UserError: an unknown name (with those near to it), or one that is not there yet.
    """
    name = name or DEFAULT_HANDLER
    if name in HANDLERS:
        return HANDLERS[name]
    if name in NOT_YET:
        raise UserError(
            f"--handler-name {name}: this handler is not there yet. "
            f"There is: {', '.join(HANDLERS)}."
        )
    folded = {known.lower(): known for known in (*HANDLERS, *NOT_YET)}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)
    hint = ", ".join(folded[known] for known in near) or ", ".join(HANDLERS)
    raise UserError(f"--handler-name {name}: no such handler. Did you mean {hint}?")
