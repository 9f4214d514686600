"""A low-rank pair and an adapter: what every format is read into and written from."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from mindspeed_llm.models.family import Family
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import TensorParallel

WEIGHT = ".weight"


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to one weight ``[out, in]``: ``scale * b @ a``.

    Attributes:
        a: ``[rank, in]``.
        b: ``[out, rank]``.
        scale: alpha / rank, or alpha / sqrt(rank).
    """

    a: Tensor
    b: Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Number of rows of ``a``."""
        return self.a.shape[0]

    def delta(self, rows: slice = slice(None)) -> Tensor:
        """Rows of the product in fp32, multiplied out first and scaled then, as ``peft`` does."""
        return (self.b[rows].float() @ self.a.float()).mul_(self.scale)


@dataclass(frozen=True)
class Settings:
    """The numbers of an adapter.

    Attributes:
        rank, alpha: of most pairs; each pair has its own scale besides.
        use_rslora: the scale is alpha / sqrt(rank) (arXiv:2312.03732) instead of alpha / rank.
        targets: Megatron's names of the modules that have a pair, sorted.
    """

    rank: int
    alpha: float
    use_rslora: bool
    targets: tuple[str, ...]

    def describe(self) -> str:
        """Rank, alpha and targets in a few words."""
        kind = " rslora" if self.use_rslora else ""
        return f"rank {self.rank} alpha {self.alpha:g}{kind} on {' '.join(self.targets)}"


class Adapter(ABC):
    """An adapter that fits a model; its tensors are read when asked for.

    Attributes:
        path: the folder that holds it.
        files: the files that hold its tensors and numbers.
        settings: rank, alpha and targets.
        names: Megatron names of the weights that it touches.
        notes: lines on what was left out in reading.
    """

    path: Path
    files: list[Path]
    settings: Settings
    names: frozenset[str]
    notes: tuple[str, ...] = ()

    @abstractmethod
    def pair(self, entry: Mapping) -> LowRank:
        """What is added to the full Megatron tensor of ``entry``, one of ``names``."""

    @abstractmethod
    def describe(self) -> str:
        """Format and numbers in a few words."""


def adaptable(family: Family, shape: ModelShape) -> dict[str, Mapping]:
    """The weights of linear layers by Megatron name: what an adapter can touch."""
    return {
        entry.megatron: entry
        for entry in family.weights(shape).expand(shape)
        if entry.megatron.endswith(WEIGHT)
        and len(entry.dims(shape)) == 2
        and not entry.megatron.startswith("embedding.")
    }


def targets_of(names: Iterable[str]) -> tuple[str, ...]:
    """The last word of each module's name, sorted: ``linear_qkv``, ``linear_proj``, ..."""
    return tuple(sorted({last_word(module_of(name)) for name in names}))


def module_of(weight_name: str) -> str:
    """The module that holds a weight."""
    return weight_name.removesuffix(WEIGHT)


def last_word(module: str) -> str:
    """``linear_qkv`` of ``decoder.layers.0.self_attention.linear_qkv``."""
    return module.rpartition(".")[2]


def scale_of(rank: int, alpha: float, use_rslora: bool) -> float:
    """The factor of the product."""
    return alpha / math.sqrt(rank) if use_rslora else alpha / rank


def alpha_of(pair: LowRank, settings: Settings) -> float:
    """The alpha that gives a pair its scale: the adapter's own if that does."""
    if pair.scale == scale_of(pair.rank, settings.alpha, settings.use_rslora):
        return settings.alpha
    alpha = pair.scale * (math.sqrt(pair.rank) if settings.use_rslora else pair.rank)
    return float(round(alpha)) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


@dataclass
class Patterns:
    """The ranks and alphas of pairs by module, to be said in as few words as ``peft`` says them."""

    settings: Settings
    ranks: dict[str, float] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)

    def add(self, module: str, pair: LowRank) -> None:
        """Note the numbers of a module's pair."""
        self.ranks[module] = pair.rank
        self.alphas[module] = alpha_of(pair, self.settings)

    def rank_pattern(self) -> dict[str, int]:
        """Where the rank is not the adapter's; keys as in :func:`pattern_value`."""
        return {key: int(r) for key, r in _different(self.ranks, self.settings.rank).items()}

    def alpha_pattern(self) -> dict[str, float]:
        """Where alpha is not the adapter's."""
        return _different(self.alphas, self.settings.alpha)


def _different(values: Table[str, float], default: float) -> dict[str, float]:
    """Last word of the name -> number where all modules of that word share it, else full name."""
    by_word: dict[str, set[float]] = {}
    for module, value in values.items():
        by_word.setdefault(last_word(module), set()).add(value)
    return {
        last_word(module) if len(by_word[last_word(module)]) == 1 else module: value
        for module, value in values.items()
        if value != default
    }


def pattern_value(table: Table[str, float], module: str, default: float) -> float:
    """The number that applies to a module; keys are regular expressions for the name's end."""
    for key, value in table.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def splits_input(entry: Mapping) -> bool:
    """Whether tensor parallelism divides the layer's input (row-parallel), so A instead of B."""
    return getattr(entry.split, "dim", 0) == 1


def take_pair(pair: LowRank, entry: Mapping, at: TensorParallel) -> LowRank:
    """The halves that one tensor-parallel rank holds, as Megatron's parallel layers divide them.

    A column-parallel layer divides the rows of B and repeats A; a row-parallel one divides the
    columns of A and repeats B. Their product is that rank's part of the whole product.
    """
    if splits_input(entry):
        return LowRank(entry.split.take(pair.a, at), pair.b, pair.scale)
    return LowRank(pair.a, entry.split.take(pair.b, at), pair.scale)
