"""Do two folders hold the same model? Logits of ours against ``transformers``, in fp32.

    python -m mindspeed_llm.checkpoint.logits CHECKPOINT REFERENCE [--config DIR] [--rounded bf16]

prints one JSON object. ``--lora`` or ``--reference-lora`` adds an adapter to one of them. It is a
program of its own, since both models need memory that should be free again at once, and so that
what is loaded is what lies on the disk.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from mindspeed_llm.checkpoint.lora.merge import MergedSource
from mindspeed_llm.checkpoint.lora.peft_folder import is_peft
from mindspeed_llm.checkpoint.lora.request import open_adapter
from mindspeed_llm.checkpoint.metadata import DTYPES
from mindspeed_llm.checkpoint.source import WeightSource, is_megatron, open_source
from mindspeed_llm.checkpoint.two_models import (
    our_logits,
    our_model,
    pass_through,
    transformers_logits,
    transformers_model,
)
from mindspeed_llm.console import entry_point
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.shape import ModelShape

TOKENS = 48
BOUND = 1e-4
"""Largest difference allowed, relative to the largest logit. The two programs add in different
orders: 1e-6 in the tiny models of the tests, 2e-6 in SmolLM2-135M. Any two weights of these tiny
models exchanged make 1e-2 or more."""


@dataclass(frozen=True)
class Comparison:
    """Two models' logits on the same tokens.

    Attributes:
        tokens: number of positions compared.
        difference: largest absolute difference.
        largest: largest absolute logit of the reference.
        agreement: share of positions whose most likely next token is the same.
    """

    tokens: int
    difference: float
    largest: float
    agreement: float

    @property
    def relative(self) -> float:
        """The difference relative to the largest logit."""
        return self.difference / self.largest if self.largest else float("inf")

    @property
    def equal(self) -> bool:
        """Whether the two are the same model (False where a logit is no number)."""
        return self.relative <= BOUND

    @classmethod
    def of(cls, mine: Tensor, wanted: Tensor) -> Comparison:
        """Compare logits ``[tokens, vocabulary]``."""
        return cls(
            tokens=len(wanted),
            difference=float((mine - wanted).abs().max()),
            largest=float(wanted.abs().max()),
            agreement=float((mine.argmax(-1) == wanted.argmax(-1)).float().mean()),
        )


def some_tokens(shape: ModelShape) -> Tensor:
    """Token ids ``[1, s]``, the same at every call."""
    length = min(TOKENS, shape.max_position_embeddings)
    generator = torch.Generator().manual_seed(20)
    return torch.randint(shape.vocab_size, (1, length), generator=generator)


@dataclass(frozen=True)
class Adapters:
    """LoRA adapters to merge into either side first.

    Attributes:
        ours, reference: folders, for the checkpoint and for what it is compared with.
        alpha: what to take where the files do not say it.
    """

    ours: str | None = None
    reference: str | None = None
    alpha: float | None = None

    @property
    def by_peft(self) -> bool:
        """Whether the reference's is merged by ``peft`` instead of by us."""
        known = importlib.util.find_spec("peft") is not None
        return self.reference is not None and known and is_peft(Path(self.reference))

    def merged(self, source: WeightSource, folder: str | None) -> WeightSource:
        """``source`` with the adapter in ``folder``, if there is one, merged by us."""
        if folder is None:
            return source
        adapter = open_adapter(Path(folder), source.family, source.shape, self.alpha)
        return MergedSource(source, adapter)


def compare(
    ours: str,
    reference: str,
    config: str | None = None,
    rounded: torch.dtype | None = None,
    adapters: Adapters = Adapters(),
) -> dict:
    """Compare the checkpoint ``ours`` with the model in the folder ``reference``.

    Args:
        config: folder of the ``config.json`` to use where ``ours``, or else ``reference``, needs
            one.
        rounded: a type through which all weights of both sides are passed, where one of them was
            rounded to it and the other not.

    Returns:
        ``{"routed": ...}`` with the fields of a :class:`Comparison`, or ``{"skipped": why}``. With
        experts also ``every_expert``: each token visits all of them alike, since an expert that
        none of the tokens chose would not have been compared.
    """
    source = open_source(ours, hf_cfg_dir=config if is_megatron(ours) else None)
    source = adapters.merged(source, adapters.ours)
    try:
        other = _reference(reference, config, adapters)
    except ValueError as error:
        return {"skipped": f"transformers: {str(error).splitlines()[0]}"}
    ids = some_tokens(source.shape)
    found = Comparison.of(_logits(source, ids, rounded), other(ids, rounded, None))
    if source.shape.experts is None:
        return {"routed": asdict(found)}
    even = _logits(source, ids, rounded, even=True)
    wanted = other(ids, rounded, (source.family, source.shape))
    return {"routed": asdict(found), "every_expert": asdict(Comparison.of(even, wanted))}


class Reference(Protocol):
    """Computes the logits to compare with."""

    def __call__(
        self, ids: Tensor, rounded: torch.dtype | None, even: tuple[Family, ModelShape] | None
    ) -> Tensor:
        """Logits ``[s, vocabulary]``."""
        ...


def _reference(folder: str, config: str | None, adapters: Adapters) -> Reference:
    """The model in ``folder``, by ``transformers`` where that can open it, else by us.

    Raises:
        ValueError: ``transformers`` does not know the model.
    """
    if is_megatron(folder) or (adapters.reference is not None and not adapters.by_peft):
        stored = open_source(folder, hf_cfg_dir=config if is_megatron(folder) else None)
        source = adapters.merged(stored, adapters.reference)
        return lambda ids, rounded, even: _logits(source, ids, rounded, even is not None)
    from transformers import AutoConfig

    known = AutoConfig.from_pretrained(config or folder)

    def by_transformers(
        ids: Tensor, rounded: torch.dtype | None, even: tuple[Family, ModelShape] | None
    ) -> Tensor:
        model = transformers_model(folder, known, adapters.reference, even)
        pass_through(model, rounded)
        return transformers_logits(model, ids)

    return by_transformers


def _logits(
    source: WeightSource, ids: Tensor, rounded: torch.dtype | None, even: bool = False
) -> Tensor:
    with our_model(source, even) as model:
        pass_through(model, rounded)
        return our_logits(model, ids)


def main(argv: list[str]) -> int:
    """Print the comparison of two folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("reference")
    parser.add_argument("--config")
    parser.add_argument("--rounded", choices=list(DTYPES))
    parser.add_argument("--lora")
    parser.add_argument("--reference-lora")
    parser.add_argument("--lora-alpha", type=float)
    options = parser.parse_args(argv)
    adapters = Adapters(options.lora, options.reference_lora, options.lora_alpha)
    rounded = DTYPES[options.rounded] if options.rounded else None
    folders = options.checkpoint, options.reference
    print(json.dumps(compare(*folders, options.config, rounded, adapters)))
    return 0


if __name__ == "__main__":
    entry_point(main, sys.argv[1:])
