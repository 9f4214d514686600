"""``--data-path``: which data sets, with which weights; each checked before anything is built."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.data.storage.indexed import bin_path, check_indexed, idx_path


@dataclass(frozen=True)
class Blend:
    """Data sets to draw samples from.

    Attributes:
        prefixes: each without ``.bin`` or ``.idx``.
        weights: shares of the samples; None: one pass over each.
    """

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None = None

    def as_megatron(self) -> tuple[list[str], list[float] | None]:
        """The form of Megatron's data set config."""
        return list(self.prefixes), None if self.weights is None else list(self.weights)


def parse_blend(words: Sequence[str], flag: str) -> Blend:
    """Read ``PREFIX``, ``PREFIX PREFIX ...`` or ``WEIGHT PREFIX WEIGHT PREFIX ...``.

    Raises:
        UserError: weights that do not alternate with prefixes, or are not positive.
    """
    words = [word.strip() for word in words if word.strip()]
    if not words:
        raise UserError(f"{flag} names no data set.")
    numbers = [_number(word) for word in words]
    if all(number is None for number in numbers):
        return Blend(tuple(words))
    alternate = len(words) % 2 == 0 and all(
        (number is None) == bool(index % 2) for index, number in enumerate(numbers)
    )
    if not alternate:
        raise UserError(
            f"{flag} {' '.join(words)}: give either prefixes alone, or a weight before each prefix "
            f"(weight prefix weight prefix ...)."
        )
    weights = tuple(number for number in numbers if number is not None)
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise UserError(
            f"{flag} {' '.join(words)}: weights must be positive; leave out a data set of weight 0."
        )
    return Blend(tuple(words[1::2]), weights)


def _number(word: str) -> float | None:
    """The number ``word`` spells, unless a data set has that name."""
    if idx_path(word).is_file():
        return None
    try:
        return float(word)
    except ValueError:
        return None


def check_blend(blend: Blend, flag: str) -> None:
    """Check that each data set of the blend is there and whole.

    Raises:
        UserError: says which one is not, and what lies near its name.
    """
    for prefix in blend.prefixes:
        missing = [path for path in (idx_path(prefix), bin_path(prefix)) if not path.is_file()]
        if len(missing) == 2:
            raise UserError(f"{flag} {prefix}: no such data set. {_suggestion(Path(prefix))}")
        if missing:
            raise UserError(
                f"{flag} {prefix}: {missing[0].name} is missing beside its other half; "
                "a data set is a .bin and an .idx file."
            )
        check_indexed(prefix)


def _suggestion(prefix: Path) -> str:
    if prefix.suffix in (".bin", ".idx") and idx_path(prefix.with_suffix("")).is_file():
        return f"Give the prefix without {prefix.suffix}: {prefix.with_suffix('')}"
    if not prefix.parent.is_dir():
        return f"There is no folder {prefix.parent}."
    names = sorted(path.stem for path in prefix.parent.glob("*.idx"))
    near = [name for name in names if name.startswith(prefix.name)]
    near += [name for name in difflib.get_close_matches(prefix.name, names) if name not in near]
    if near:
        return "Did you mean " + " or ".join(str(prefix.parent / name) for name in near[:5]) + "?"
    if not names:
        return (
            f"The folder {prefix.parent} holds no data set (.idx file): preprocess the text first."
        )
    return f"The folder {prefix.parent} holds: {', '.join(names[:10])}."
