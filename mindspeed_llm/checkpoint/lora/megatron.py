"""An adapter in Megatron's rank files: alone, or beside the weights it belongs to.

Format (``docs/lora.md``): an iteration folder as of a ``torch`` checkpoint, whose state dicts hold
``decoder.layers.0.self_attention.linear_qkv.lora_A.default.weight`` and ``lora_B`` (the names
that ``peft`` gives inside a Megatron model), divided as ``peft``'s parallel layers do: a
column-parallel layer's B by rows, a row-parallel layer's A by columns. ``args`` carry lora_r,
lora_alpha and lora_target_modules.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.lora.adapter import (
    Adapter,
    LowRank,
    Settings,
    adaptable,
    last_word,
    module_of,
    pattern_value,
    scale_of,
    splits_input,
    targets_of,
)
from mindspeed_llm.checkpoint.metadata import CheckpointLayout, read_metadata
from mindspeed_llm.checkpoint.placement import Held, held_tensors
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import TensorParallel, same_bits

HALF = ".lora_{}.default.weight"
_HALF = re.compile(r"(?:module\.)?(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight$")
# Parts of the shape that decide the sizes of pairs.
_SIZES = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
    *("kv_channels", "latent", "experts"),
)

Halves = dict[str, Tensor]
"""The two tensors of a pair on one rank: A and B."""


def read_args(path: Path) -> dict[str, Any]:
    """The ``args`` of a Megatron checkpoint in format ``torch``."""
    root, iteration = paths.resolve(path)
    folder = paths.iteration_folder(root, iteration)
    if paths.is_torch_dist(folder):
        raise UserError(
            f"{folder} is in format torch_dist; adapters are read from format torch "
            "(--ckpt-format torch) or from a PEFT folder"
        )
    content = load_file(paths.first_rank_file(folder))
    if content.get("args") is None:
        raise UserError(f"{folder} holds no args, so the adapter's layout is unknown")
    return vars(content["args"])


class MegatronAdapter(Adapter):
    """An adapter in rank files, checked against the model that it is for.

    Args:
        path: a checkpoint root, or the folder of one iteration.
        alpha: what to take if the files do not say it.

    Raises:
        UserError: if pairs are missing, do not fit the model, or rank or alpha are unknown.
    """

    def __init__(
        self, path: Path, family: Family, shape: ModelShape, alpha: float | None = None
    ) -> None:
        self.path = path
        root, iteration = paths.resolve(path)
        self._folder = paths.iteration_folder(root, iteration)
        self._args = read_args(path)
        self._shape = shape
        self._entries = adaptable(family, shape)
        self.layout = self._compatible_layout(family)
        self._parts: dict[str, dict[int, Halves]] = {}
        self._positions: dict[str, list[TensorParallel]] = {}
        self._others = 0
        self.files = []
        self._read(family)
        self.names = frozenset(self._parts)
        self.settings = self._read_settings(alpha)
        if self._others:
            self.notes = (f"left alone: {self._others} tensors in {path} that are no LoRA pairs",)
        self._check()

    def pair(self, entry: Mapping) -> LowRank:
        parts = self._parts[entry.megatron]
        halves = [parts[rank] for rank in sorted(parts)]
        a, b = [half["A"] for half in halves], [half["B"] for half in halves]
        rank, (rows, columns) = a[0].shape[0], entry.dims(self._shape)
        name = module_of(entry.megatron)
        alpha = pattern_value(self._args.get("lora_alpha_pattern") or {}, name, self.settings.alpha)
        scale = scale_of(rank, alpha, self.settings.use_rslora)
        if splits_input(entry):
            return LowRank(entry.split.join(a, (rank, columns)), self._one(b, name, "B"), scale)
        return LowRank(self._one(a, name, "A"), entry.split.join(b, (rows, rank)), scale)

    def _one(self, copies: list[Tensor], name: str, half: str) -> Tensor:
        if all(same_bits(copy, copies[0]) for copy in copies[1:]):
            return copies[0]
        raise UserError(
            f"{self._folder}: {half} of {name} differs between tensor-parallel ranks, which hold "
            "copies of it; the run that wrote them did not keep them equal"
        )

    def describe(self) -> str:
        return f"Megatron {self.layout.describe()} {self.settings.describe()}"

    def _compatible_layout(self, family: Family) -> CheckpointLayout:
        """The stored layout; the model that the adapter was made for must have the same sizes."""
        args = argparse.Namespace(**self._args)
        _, own, layout = read_metadata(args, self._shape.vocab_size)
        lines = [
            f"{name}: adapter {getattr(own, name)}, model {getattr(self._shape, name)}"
            for name in _SIZES
            if getattr(own, name) != getattr(self._shape, name)
        ]
        if lines:
            raise UserError(
                f"{self.path} is an adapter for another model than this {family.name}:\n  "
                + "\n  ".join(lines)
            )
        return layout

    def _read(self, family: Family) -> None:
        """Collect the halves of every entry over the ranks that share it."""
        pipeline = self.layout.pipeline
        for at in self.layout.ranks(self._shape):
            for stage in range(pipeline.pipeline_parallel):
                expert_rank = at.experts.rank if at.experts is not None else 0
                file = self._folder / self.layout.grid.folder(at.rank, stage, expert_rank)
                content = load_file(file / paths.RANK_FILE)
                self.files.append(file / paths.RANK_FILE)
                for chunk, key in enumerate(pipeline.chunk_keys()):
                    if key not in content:
                        raise UserError(f"{file} has no {key!r}; it holds {', '.join(content)}")
                    held = {
                        module_of(held.name): held
                        for held in held_tensors(family, self._shape, pipeline, stage, chunk, at)
                        if held.entries[0].megatron in self._entries
                    }
                    self._add(file, self._pairs(file, content[key]), held)

    def _pairs(self, file: Path, state: dict[str, Tensor]) -> dict[str, Halves]:
        """The halves in a state dict by module."""
        pairs: dict[str, Halves] = {}
        for name, tensor in state.items():
            if match := _HALF.match(name):
                pairs.setdefault(match[1], {})[match[2]] = tensor
            elif "lora_" in name:
                raise UserError(f"{file}: {name} is not half of a plain LoRA pair")
            else:
                self._others += 1
        return pairs

    def _add(self, file: Path, pairs: dict[str, Halves], held: dict[str, Held]) -> None:
        unknown = [module for module in pairs if module not in held]
        if unknown:
            raise UserError(
                f"{file}: pairs for {', '.join(unknown[:3])}, which the model does not have "
                f"there; its layers have {', '.join(targets_of(self._entries))}"
            )
        for module, halves in pairs.items():
            if len(halves) != 2:
                raise UserError(f"{file}: the other half of the pair of {module} is missing")
            entry, at = held[module].entries[0], held[module].at
            # Ranks of other experts repeat what is not an expert's: the first one is taken.
            self._parts.setdefault(entry.megatron, {}).setdefault(at.rank, halves)
            self._positions.setdefault(entry.megatron, []).append(at)

    def _read_settings(self, alpha: float | None) -> Settings:
        if not self.names:
            raise UserError(f"{self._folder} holds no LoRA pairs (names with lora_A and lora_B)")
        alpha = self._args.get("lora_alpha") or alpha
        if alpha is None:
            raise UserError(
                f"{self._folder} does not say its lora_alpha; give the value of the training run "
                "with --lora-alpha"
            )
        found = Counter(
            halves["A"].shape[0] for parts in self._parts.values() for halves in parts.values()
        )
        return Settings(
            rank=int(self._args.get("lora_r") or found.most_common(1)[0][0]),
            alpha=float(alpha),
            use_rslora=bool(self._args.get("lora_use_rslora")),
            targets=targets_of(self.names),
        )

    def _check(self) -> None:
        """Sizes, and that no pair is missing."""
        lines = [line for name in self._parts for line in self._misfits(self._entries[name])]
        stated = self._args.get("lora_target_modules")
        if stated and set(stated) != set(self.settings.targets):
            lines.append(
                f"args say lora_target_modules {' '.join(stated)}, pairs are there for "
                f"{' '.join(self.settings.targets)}"
            )
        lines += self._missing(self._args.get("lora_pairs"))
        if lines:
            more = f"\n  … and {len(lines) - 8} more" if len(lines) > 8 else ""
            raise UserError(
                f"{self._folder} does not fit the model:\n  " + "\n  ".join(lines[:8]) + more
            )

    def _misfits(self, entry: Mapping) -> list[str]:
        module, parts = module_of(entry.megatron), self._parts[entry.megatron]
        ranks = self._args.get("lora_rank_pattern") or {}
        rank = int(pattern_value(ranks, module, self.settings.rank))
        rows, columns = entry.dims(self._shape)
        lines = []
        at = self._positions[entry.megatron][0]
        if len(parts) != at.size:
            lines.append(f"{module}: {len(parts)} of {at.size} tensor-parallel ranks have a pair")
        a: tuple[int, ...] = (rank, columns)
        b: tuple[int, ...] = (rows, rank)
        if splits_input(entry):
            a = entry.split.part_dims(a, at)
        else:
            b = entry.split.part_dims(b, at)
        return lines + [
            f"{module}, rank {number}: {half} has size {list(halves[half].shape)}, expected "
            f"{list(size)} (rank {rank} by the args)"
            for number, halves in sorted(parts.items())
            for half, size in (("A", a), ("B", b))
            if tuple(halves[half].shape) != size
        ]

    def _missing(self, pairs: int | None) -> list[str]:
        """Pairs that other layers have and one lacks; by their number if the files state it."""
        if pairs is not None:
            there = len(self.names)
            return [] if there == pairs else [f"{there} pairs are there, args say {pairs}"]
        kinds = {last_word(module_of(name)) for name in self.names}
        return [
            f"{module_of(name)} has no pair, other layers have"
            for name in self._entries
            if last_word(module_of(name)) in kinds and name not in self.names
        ]
