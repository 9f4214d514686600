"""Samples as they are trained on: text with the trained tokens marked, special tokens visible."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mindspeed_llm.data.storage.parts import IGNORE
from mindspeed_llm.data.tokenizer import Tokenizer

GREEN, CYAN, DIM, END = "\x1b[32m", "\x1b[36m", "\x1b[2m", "\x1b[0m"
# What marks trained tokens where there is no colour.
OPEN, CLOSE = "⟦", "⟧"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens of one sample that are alike.

    Attributes:
        trained: whether the loss is taken on them.
        special: whether they are special tokens.
    """

    ids: tuple[int, ...]
    trained: bool
    special: bool


@dataclass(frozen=True)
class Viewer:
    """Writes samples as text.

    Attributes:
        tokenizer: None: ids stand for themselves.
        color: ANSI colours; else trained tokens stand between marks.
    """

    tokenizer: Tokenizer | None
    color: bool

    def legend(self) -> str:
        """A line that says what the marks mean."""
        if self.color:
            return f"{GREEN}trained{END}  not trained  {CYAN}special token{END}  {DIM}padding{END}"
        return f"{OPEN}trained{CLOSE}  not trained"

    def row(self, tokens: np.ndarray, labels: np.ndarray, segments: np.ndarray) -> str:
        """All samples of a row, each under a line with its place and its share of training."""
        lines = []
        numbers = [number for number in dict.fromkeys(segments.tolist()) if number]
        for number in numbers:
            places = np.flatnonzero(segments == number)
            first, end = int(places[0]), int(places[-1]) + 1
            mine = labels[first:end] != IGNORE
            share = f"{mine.sum()} of {end - first} tokens trained ({mine.mean():.0%})"
            name = f"sample {number} of {len(numbers)}, " if len(numbers) > 1 else ""
            lines.append(self._dim(f"-- {name}tokens {first} to {end - 1}: {share}"))
            lines.append(self.text(tokens[first:end], labels[first:end]))
        padding = int((segments == 0).sum())
        if padding:
            lines.append(self._dim(f"-- {padding} tokens of padding"))
        return "\n".join(lines)

    def text(self, tokens: np.ndarray, labels: np.ndarray) -> str:
        """The text of one sample."""
        return "".join(self._written(run) for run in self._runs(tokens, labels != IGNORE))

    def _runs(self, tokens: np.ndarray, trained: np.ndarray) -> Iterator[Run]:
        names = self.tokenizer
        specials = set() if names is None else set(names.hf.all_special_ids) | _added(names)
        alike = np.stack([trained, np.isin(tokens, list(specials))])
        changes = np.flatnonzero((alike[:, 1:] != alike[:, :-1]).any(axis=0)) + 1
        for ids, flags in zip(
            np.split(tokens, changes), np.split(alike, changes, axis=1), strict=True
        ):
            if len(ids):
                yield Run(tuple(ids.tolist()), bool(flags[0, 0]), bool(flags[1, 0]))

    def _written(self, run: Run) -> str:
        if self.tokenizer is None:
            text = " ".join(map(str, run.ids)) + " "
        else:
            text = self.tokenizer.decode(run.ids)
        # Text from a file must not steer the terminal.
        text = _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
        if not self.color:
            return f"{OPEN}{text}{CLOSE}" if run.trained else text
        color = (CYAN if run.special else "") + (GREEN if run.trained and not run.special else "")
        if run.special and run.trained:
            color = "\x1b[1;32m"
        return f"{color}{text}{END}" if color else text

    def _dim(self, text: str) -> str:
        return f"{DIM}{text}{END}" if self.color else text


def _added(tokenizer: Tokenizer) -> set[int]:
    return set(getattr(tokenizer.hf, "added_tokens_decoder", {}))
