"""Text around the engine: which tokens end an answer, and token ids back to text as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError

if TYPE_CHECKING:
    from mindspeed_llm.data.tokenizer import Tokenizer

# A tokenizer writes this for bytes that are no whole character (yet).
_UNFINISHED = "�"
# Tokens of the prompt that the first new one is decoded together with, for the space between.
_CONTEXT = 6


def end_tokens(
    folders: Iterable[Path | None], tokenizer: Tokenizer, more: Sequence[str] = ()
) -> dict[int, str]:
    """Every token that ends an answer, with where it is said.

    A model's files often name different ones: the tokenizer the end of a document, the
    generation settings the end of a turn as well. All of them count.

    Args:
        folders: those that may hold ``generation_config.json`` and ``config.json``.
        more: further tokens, as text (``--add-eos-token``).

    Raises:
        UserError: one of ``more`` is not a single token, or a file is broken.
    """
    found: dict[int, str] = {}
    for folder in dict.fromkeys(folder for folder in folders if folder is not None):
        for name in ("generation_config.json", "config.json"):
            for token in _end_ids(folder / name):
                found.setdefault(token, name)
    if tokenizer.hf.eos_token_id is not None:
        found.setdefault(int(tokenizer.hf.eos_token_id), "tokenizer")
    for text in more:
        found.setdefault(_single_token(tokenizer, text), "--add-eos-token")
    return found


def _end_ids(path: Path) -> list[int]:
    if not path.is_file():
        return []
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a JSON object ({error}); download it again") from None
    ids = value if isinstance(value, list) else [value]
    return [token for token in ids if isinstance(token, int)]


def _single_token(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise UserError(
            f"--add-eos-token {text!r} is {len(ids)} tokens for this tokenizer; give text that "
            "is one token"
        )
    return ids[0]


class TextStream:
    """New tokens to text, piece by piece; the pieces join to the whole answer.

    A piece is held back while it ends in part of a character, so no broken character is shown.

    Args:
        decode: ids to text, special tokens left out.
        prompt: ids before the first new one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt[-_CONTEXT:])
        # ids[start:shown] are shown already; they are decoded again with what follows, since a
        # token's text may depend on the one before.
        self._start, self._shown = 0, len(self._ids)

    def push(self, token: int) -> str:
        """Take in a token; returns the text that can be shown now."""
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        return "" if text.endswith(_UNFINISHED) else self._emit(text)

    def finish(self) -> str:
        """The rest at the end of an answer, finished or not."""
        return self._emit(self._decode(self._ids[self._start :]))

    def _emit(self, text: str) -> str:
        before = self._decode(self._ids[self._start : self._shown])
        self._start, self._shown = self._shown, len(self._ids)
        return text[len(before) :]
