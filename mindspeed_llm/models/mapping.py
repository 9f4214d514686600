"""The weight map: one table per family that serves every direction.

An entry is (Megatron name, Hugging Face name(s), transform, split). ``*`` in a name stands for
the global layer index and ``#`` for the global expert index, on both sides. From the same entries
come HF to Megatron, Megatron to HF, resharding, direct loading into a live model, and the list of
names that must exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import REPLICATED, Split
from mindspeed_llm.models.transforms import RENAME, SHARED, Transform

Dims = Callable[[ModelShape], tuple[int, ...]]


def _every_layer(shape: ModelShape, layer: int) -> bool:
    return True


@dataclass(frozen=True)
class Mapping:
    """One entry of a weight map; a pattern if its names contain ``*`` or ``#``.

    Attributes:
        megatron: Megatron's parameter name, layers counted globally.
        hf: Hugging Face name or names, in the order that ``transform`` takes them.
        dims: size of the full Megatron tensor, without vocabulary padding.
        layers: in which layers of a shape a pattern exists.
        keep_fp32: whether the tensor stays in fp32 whatever the model's type.
        expert: the expert that a concrete entry belongs to; None outside the routed experts.
    """

    megatron: str
    hf: tuple[str, ...]
    dims: Dims
    transform: Transform = RENAME
    split: Split = REPLICATED
    layers: Callable[[ModelShape, int], bool] = _every_layer
    keep_fp32: bool = False
    expert: int | None = None

    @property
    def copies(self) -> tuple[str, ...]:
        """Hugging Face names that hold a tensor once more, and that files may lack."""
        return self.hf[1:] if self.transform is SHARED else ()

    def at_layer(self, shape: ModelShape, layer: int) -> Iterator[Mapping]:
        """The entries of one layer: none, one, or one for each expert."""
        if not self.layers(shape, layer):
            return
        entry = self._filled("*", layer)
        if "#" not in entry.megatron:
            yield entry
            return
        assert shape.experts is not None
        for expert in range(shape.experts.num_experts):
            yield replace(entry._filled("#", expert), expert=expert)

    def _filled(self, mark: str, index: int) -> Mapping:
        return replace(
            self,
            megatron=self.megatron.replace(mark, str(index)),
            hf=tuple(name.replace(mark, str(index)) for name in self.hf),
        )

    def hf_shapes(self, shape: ModelShape) -> dict[str, tuple[int, ...]]:
        """Expected size of each Hugging Face tensor, found by cutting a meta tensor."""
        # Views only: stacking on the meta device makes PyTorch import its compiler, for seconds.
        meta = torch.empty(self.dims(shape), device="meta")
        tensors = self.transform.inverse_rows(shape, meta)
        return {
            name: (sum(part.shape[0] for part in rows), *meta.shape[1:])
            for name, rows in zip(self.hf, tensors, strict=True)
        }

    def to_megatron(self, shape: ModelShape, tensors: tuple[Tensor, ...]) -> Tensor:
        """Full Megatron tensor from the Hugging Face tensors."""
        return self.transform.forward(shape, tensors)

    def to_hf(self, shape: ModelShape, tensor: Tensor) -> dict[str, Tensor]:
        """Hugging Face tensors by name from the full Megatron tensor."""
        return dict(zip(self.hf, self.transform.inverse(shape, tensor), strict=True))


def layer_entry(megatron: str, hf: tuple[str, ...], dims: Dims, **steps: Any) -> Mapping:
    """A pattern whose names are given as within a layer; ``steps`` are further fields."""
    names = tuple(f"model.layers.*.{name}" for name in hf)
    return Mapping(f"decoder.layers.*.{megatron}", names, dims, **steps)


@dataclass(frozen=True)
class WeightMap:
    """All entries of a family; ``expand`` writes them out for one shape."""

    entries: tuple[Mapping, ...]

    def expand(self, shape: ModelShape) -> Iterator[Mapping]:
        """Every concrete entry, in the order embedding, layers, final norm, output layer."""
        pending: list[Mapping] = []
        for entry in (*self.entries, None):
            if entry is not None and "*" in entry.megatron:
                pending.append(entry)
                continue
            for layer in range(shape.num_layers if pending else 0):
                for pattern in pending:
                    yield from pattern.at_layer(shape, layer)
            pending = []
            if entry is not None:
                yield entry

    def num_parameters(self, shape: ModelShape) -> int:
        """Number of weights, a tied table counted once."""
        return sum(prod(entry.dims(shape)) for entry in self.expand(shape))

    def by_megatron_name(self, shape: ModelShape) -> dict[str, Mapping]:
        """Concrete entries keyed by Megatron's name."""
        return {entry.megatron: entry for entry in self.expand(shape)}


_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


def layer_of(megatron_name: str) -> int | None:
    """The layer index in a Megatron parameter name, None outside the layers."""
    match = _LAYER.match(megatron_name)
    return int(match.group(1)) if match else None


def with_layer(megatron_name: str, layer: int) -> str:
    """The same name at another layer index (global to stage-local and back)."""
    return _LAYER.sub(f"decoder.layers.{layer}.", megatron_name)
