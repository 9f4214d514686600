"""A model of each family whose weights can be exchanged two by two, as a wrong map would."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from mindspeed_llm.checkpoint.live import unwrap
from mindspeed_llm.checkpoint.logits import Comparison, some_tokens
from mindspeed_llm.checkpoint.source import WeightSource, open_source
from mindspeed_llm.checkpoint.two_models import (
    our_logits,
    our_model,
    transformers_logits,
    transformers_model,
)
from mindspeed_llm.models.gpt import GPTModel
from mindspeed_llm.models.mapping import Mapping

Pair = tuple[Mapping, Mapping]


class Exchanger:
    """A live model, what ``transformers`` computes from the same folder, and exchanges in it."""

    def __init__(self, source: WeightSource, model: GPTModel, wanted: Tensor, ids: Tensor) -> None:
        self.source = source
        self._model = model
        self._tensors = unwrap(model).state_dict(keep_vars=True)
        self._wanted = wanted
        self._ids = ids

    def pairs(self, limit: int | None, seed: int = 0) -> list[Pair]:
        """Pairs of entries of one size, at most ``limit`` of them, chosen at random.

        Layers that predict further tokens take no part in the logits compared.
        """
        groups = defaultdict(list)
        for entry in self.source.entries():
            if not entry.megatron.startswith("mtp."):
                groups[entry.dims(self.source.shape)].append(entry)
        pairs = [pair for group in groups.values() for pair in itertools.combinations(group, 2)]
        if limit is None or len(pairs) <= limit:
            return pairs
        return random.Random(seed).sample(pairs, limit)

    def compare(self) -> Comparison:
        """The check's own comparison."""
        return Comparison.of(our_logits(self._model, self._ids), self._wanted)

    def compare_exchanged(self, pair: Pair) -> Comparison:
        """The same with the two entries in each other's place."""
        one, other = pair
        with torch.no_grad():
            self._put(one, other)
            self._put(other, one)
            found = self.compare()
            self._put(one, one)
            self._put(other, other)
        return found

    def _put(self, entry: Mapping, place: Mapping) -> None:
        full = self.source.full(entry)
        # The table may have rows that only pad it.
        self._tensors[place.megatron][: len(full)].copy_(full)


@contextmanager
def exchanger(folder: Path, even: bool = False) -> Iterator[Exchanger]:
    """The model in a Hugging Face folder; ``even``: every token visits every expert."""
    from transformers import AutoConfig

    source = open_source(folder)
    ids = some_tokens(source.shape)
    evenly = (source.family, source.shape) if even else None
    reference = transformers_model(str(folder), AutoConfig.from_pretrained(folder), even=evenly)
    with our_model(source, even) as model:
        yield Exchanger(source, model, transformers_logits(reference, ids), ids)
