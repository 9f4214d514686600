"""Encode conversations: the ids of the whole text, and which of them are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindspeed_llm.data.encoder import Engine
from mindspeed_llm.data.templates.template import Rendered
from mindspeed_llm.data.tokenizer import Tokenizer

# The label of a token that is not trained.
IGNORE = -100


@dataclass(frozen=True)
class EncodedChats:
    """Tokens of consecutive samples.

    Attributes:
        ids: [total] int32, one sample after the other.
        lengths: [samples] int64.
        trained: [total] bool, whether the loss is taken on the token itself (as a target).
        spans: [spans, 2] int64, ``[start, end)`` in ``ids`` of each trained span, in order.
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
    writes it.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        from tokenizers import Tokenizer as Backend

        self._engine = engine
        self._backend = Backend.from_str(tokenizer.backend_json())

    def encode(self, rendered: Sequence[Rendered]) -> EncodedChats:
        """The ids and the trained tokens of each sample."""
        encodings = self._backend.encode_batch([r.text for r in rendered], add_special_tokens=False)
        ids, spans = [], []
        start = 0
        for one, encoding in zip(rendered, encodings, strict=True):
            offsets = encoding.offsets
            for first, last in one.spans:
                inside = [i for i, (a, b) in enumerate(offsets) if b > first and a < last]
                spans.append((start + inside[0], start + inside[-1] + 1))
            ids.extend(encoding.ids)
            start += len(encoding.ids)
        trained = np.zeros(len(ids), dtype=bool)
        for a, b in spans:
            trained[a:b] = True
        return EncodedChats(
            np.array(ids, dtype=np.int32),
            np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64),
            trained,
            np.array(spans, dtype=np.int64).reshape(-1, 2),
            np.array([len(one.spans) for one in rendered], dtype=np.int64),
        )
