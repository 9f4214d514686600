"""How many bytes of the text each token of a vocabulary stands for.

With it the place of every token in a text is a running sum, for whole batches at once: no engine
has to tell offsets, which costs more than the encoding itself. The sum of a text must be its
length in bytes; where it is not (a normaliser changed the text, a token swallowed a space beside
it, an unknown character), the text goes to ``tokenizers`` for its offsets.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np

# An unknown token can stand for anything: no text that holds one may add up.
UNKNOWN = 1 << 40
SPACE = "\u2581"
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Normalisers after which the bytes of the tokens are still those of the text, if the text was in
# that form already.
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


class ByteLengths:
    """Bytes by token id.

    Attributes:
        table: [vocabulary] int64.
        form: the Unicode form that a text must be in for its sum to mean anything; None for any.
        spaces: whether tokens spell a space as U+2581, which a text must then not hold itself.
    """

    def __init__(self, table: np.ndarray, form: str | None, spaces: bool) -> None:
        self.table = table
        self.form = form
        self.spaces = spaces

    def fits(self, text: str) -> bool:
        """Whether the sum of the tokens' lengths can be trusted to place them in ``text``."""
        if text.isascii():
            return True
        if self.spaces and SPACE in text:
            return False
        return self.form is None or unicodedata.is_normalized(self.form, text)  # type: ignore[arg-type]


def byte_lengths(backend_json: str) -> ByteLengths | None:
    """The table of a tokenizer, or None if its tokens are not pieces of the text's own bytes."""
    backend = json.loads(backend_json)
    model = backend["model"]
    if model.get("type") != "BPE" or model.get("continuing_subword_prefix"):
        return None
    parts = list(_parts(backend))
    if any(_adds_a_space(part) for part in parts):
        return None
    normalizers = list(_steps(backend.get("normalizer"), "normalizers"))
    forms = [step["type"] for step in normalizers if step["type"] in FORMS]
    spaces = any(_writes_spaces(step) for step in normalizers)
    if len(forms) + spaces != len(normalizers) or len(forms) > 1:
        return None
    spaces = spaces or any(part["type"] == "Metaspace" for part in parts)
    if not spaces and not any(part["type"] == "ByteLevel" for part in parts):
        return None
    table = _table(backend, spaces)
    return ByteLengths(table, forms[0] if forms else None, spaces)


def _table(backend: dict[str, Any], spaces: bool) -> np.ndarray:
    vocabulary: dict[str, int] = backend["model"]["vocab"]
    added = {token["id"]: token["content"] for token in backend.get("added_tokens", ())}
    table = np.full(max([*vocabulary.values(), *added], default=-1) + 1, UNKNOWN, dtype=np.int64)
    for token, index in vocabulary.items():
        if not spaces:
            table[index] = len(token)  # a character stands for a byte
        elif BYTE.fullmatch(token):
            table[index] = 1
        else:
            table[index] = _size(token.replace(SPACE, " "))
    for index, content in added.items():
        table[index] = _size(content.replace(SPACE, " ") if spaces else content)
    unknown = backend["model"].get("unk_token")
    if unknown in vocabulary:
        table[vocabulary[unknown]] = UNKNOWN
    return table


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _steps(step: dict[str, Any] | None, name: str) -> Iterator[dict[str, Any]]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step[name]:
            yield from _steps(inner, name)
    else:
        yield step


def _parts(backend: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _steps(backend.get("pre_tokenizer"), "pretokenizers")
    yield from _steps(backend.get("normalizer"), "normalizers")


def _adds_a_space(part: dict[str, Any]) -> bool:
    if part["type"] == "Metaspace":
        return part.get("prepend_scheme", "always") != "never"
    return part["type"] == "Prepend" or bool(part.get("add_prefix_space"))


def _writes_spaces(step: dict[str, Any]) -> bool:
    """Whether a normaliser only writes spaces as U+2581."""
    return (
        step["type"] == "Replace"
        and step.get("pattern") == {"String": " "}
        and step.get("content") == SPACE
    )
