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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mindspeed_llm.checkpoint.lora.merge import MergedSource
from mindspeed_llm.checkpoint.lora.peft_folder import is_peft
from mindspeed_llm.checkpoint.lora.request import open_adapter
from mindspeed_llm.checkpoint.metadata import DTYPES
from mindspeed_llm.checkpoint.source import WeightSource, is_megatron, open_source
from mindspeed_llm.console import entry_point

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from mindspeed_llm.models.gpt import GPTModel

TOKENS = 48
BOUND = 1e-3
"""Largest difference allowed, relative to the largest logit. The two programs add in different
orders, which was measured to make 1e-6 to 1e-4 in fp32; two norms of a model exchanged make more
than this bound."""


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


def some_tokens(vocab_size: int, longest: int) -> Tensor:
    """Token ids ``[1, n]``, the same at every call."""
    generator = torch.Generator().manual_seed(20)
    return torch.randint(vocab_size, (1, min(TOKENS, longest)), generator=generator)


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
        The fields of a :class:`Comparison`, or ``{"skipped": why}``.
    """
    source = open_source(ours, hf_cfg_dir=config if is_megatron(ours) else None)
    source = adapters.merged(source, adapters.ours)
    ids = some_tokens(source.shape.vocab_size, source.shape.max_position_embeddings)
    if is_megatron(reference) or (adapters.reference is not None and not adapters.by_peft):
        other = open_source(reference, hf_cfg_dir=config if is_megatron(reference) else None)
        wanted = _ours(adapters.merged(other, adapters.reference), ids, rounded)
    else:
        from transformers import AutoConfig

        try:
            known = AutoConfig.from_pretrained(config or reference)
        except ValueError as error:
            return {"skipped": f"transformers: {str(error).splitlines()[0]}"}
        wanted = transformers_logits(reference, known, ids, rounded, adapters.reference)
    return asdict(Comparison.of(_ours(source, ids, rounded), wanted))


def _round(model: nn.Module, dtype: torch.dtype | None) -> None:
    if dtype is not None:
        # Weights and buffers that are saved: rotary frequencies, which are computed, stay.
        for tensor in model.state_dict().values():
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.copy_(tensor.to(dtype))


def transformers_logits(
    folder: str,
    config: PretrainedConfig,
    ids: Tensor,
    rounded: torch.dtype | None = None,
    adapter: str | None = None,
) -> Tensor:
    """Logits ``[tokens, vocabulary]`` by ``transformers``, in fp32.

    Args:
        rounded: a type through which the weights are passed.
        adapter: PEFT folder to merge first.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    _round(model, rounded)
    with torch.no_grad():
        return model.eval()(ids, use_cache=False).logits[0]


def _ours(source: WeightSource, ids: Tensor, rounded: torch.dtype | None) -> Tensor:
    with our_model(source) as model:
        _round(model, rounded)
        return our_logits(model, ids)


@contextmanager
def our_model(source: WeightSource) -> Iterator[GPTModel]:
    """The model of ``source`` with its weights, in fp32, in a process group of one."""
    from mindspeed_llm import distributed
    from mindspeed_llm.flags import parse
    from mindspeed_llm.live_model import build_live_model
    from mindspeed_llm.model_source import ResolvedModel

    cfg = parse("inference", ["--load", str(source.path)])
    model = ResolvedModel(source.family, source.shape, source.describe(), source)
    cfg = model.fill(cfg)
    position = distributed.initialize(cfg)
    try:
        changes = {"perform_initialization": False}
        (chunk,) = build_live_model(cfg, model, position, load_weights=True, **changes).chunks
        yield chunk.eval()
    finally:
        distributed.shutdown()


def our_logits(model: GPTModel, ids: Tensor) -> Tensor:
    """Logits ``[tokens, vocabulary]`` of the token ids ``[1, tokens]``."""
    positions = torch.arange(ids.shape[1]).unsqueeze(0)
    with torch.no_grad():
        return model(ids, positions, None)[0, :, : model.shape.vocab_size]


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
