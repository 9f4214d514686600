"""Reading an adapter folder of the ``peft`` package."""

from __future__ import annotations

import re
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.hf_reader import HfTensors
from mindspeed_llm.checkpoint.lora.adapter import (
    Adapter,
    LowRank,
    Settings,
    adaptable,
    last_word,
    module_of,
    targets_of,
)
from mindspeed_llm.checkpoint.lora.fuse import fuse
from mindspeed_llm.checkpoint.lora.peft_config import CONFIG, PeftConfig, read_config
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.shape import ModelShape

PREFIX = "base_model.model."
SAFETENSORS, BIN = "adapter_model.safetensors", "adapter_model.bin"
_NAME = re.compile(rf"{re.escape(PREFIX)}(.+)\.lora_([AB])(?:\.default)?\.weight$")
_LAYER = re.compile(r"\.\d+\.")


def is_peft(folder: Path) -> bool:
    """Whether a folder holds a ``peft`` adapter."""
    return (folder / CONFIG).is_file()


class PeftAdapter(Adapter):
    """An adapter folder, checked against the model that it is for.

    Raises:
        UserError: whatever is not plain LoRA, or does not fit the model, by name.
    """

    def __init__(self, folder: Path, family: Family, shape: ModelShape) -> None:
        self.path = folder
        self._shape = shape
        self._config = read_config(folder)
        self._tensors = _open(folder)
        self.files = [folder / CONFIG, *self._tensors.files]
        self._halves = self._sorted_halves()
        entries = adaptable(family, shape)
        self._check(entries)
        adapted = [e for e in entries.values() if any(self._has(name) for name in e.hf)]
        self.names = frozenset(entry.megatron for entry in adapted)
        config = self._config
        targets = targets_of(self.names)
        self.settings = Settings(config.rank, config.alpha, config.use_rslora, targets)

    def pair(self, entry: Mapping) -> LowRank:
        parts = [self._part(module_of(name)) if self._has(name) else None for name in entry.hf]
        return fuse(entry, self._shape, parts)

    def describe(self) -> str:
        return f"PEFT {self.settings.describe()}"

    def _has(self, weight_name: str) -> bool:
        return module_of(weight_name) in self._halves

    def _part(self, module: str) -> LowRank:
        names = self._halves[module]
        a, b = (self._tensors.get(names[half]) for half in "AB")
        return LowRank(a, b, self._config.scale_of(module))

    def _sorted_halves(self) -> dict[str, dict[str, str]]:
        """Module -> half -> stored name; every stored tensor must be one half of a pair."""
        halves: dict[str, dict[str, str]] = {}
        strange = []
        for name in self._tensors.specs:
            match = _NAME.match(name)
            if match is None:
                strange.append(name)
            else:
                halves.setdefault(match[1], {})[match[2]] = name
        if strange:
            raise UserError(
                f"{self.path}: not LoRA pairs of linear layers: {', '.join(strange[:4])}"
                f"{' …' if len(strange) > 4 else ''}; adapters of embeddings, trained modules and "
                "biases cannot be converted (peft's merge_and_unload can merge them)"
            )
        single = [names for names in halves.values() if len(names) == 1]
        if single or not halves:
            what = next(iter(single[0].values())) if single else "all pairs"
            raise UserError(f"{self.path}: the other half of {what} is missing; copy it again")
        return halves

    def _check(self, entries: dict[str, Mapping]) -> None:
        """Every pair must belong to a layer of the model and fit it; none may be missing."""
        expected = {
            module_of(name): dims
            for entry in entries.values()
            for name, dims in entry.hf_shapes(self._shape).items()
        }
        unknown = [module for module in self._halves if module not in expected]
        if unknown:
            known = ", ".join(sorted({last_word(module) for module in expected}))
            raise UserError(
                f"{self.path}: the model has no linear layer {', '.join(unknown[:3])} "
                f"({len(unknown)} of {len(self._halves)} pairs); it has {known} in "
                f"{self._shape.num_layers} layers. The adapter is for another model"
            )
        lines = [
            line for module in self._halves for line in self._misfits(module, expected[module])
        ]
        lines += _missing(self._config, set(self._halves), set(expected))
        if lines:
            more = f"\n  … and {len(lines) - 8} more" if len(lines) > 8 else ""
            raise UserError(
                f"{self.path} does not fit the model:\n  " + "\n  ".join(lines[:8]) + more
            )

    def _misfits(self, module: str, dims: tuple[int, ...]) -> list[str]:
        rank = self._config.rank_of(module)
        wanted = {"A": (rank, dims[1]), "B": (dims[0], rank)}
        names = self._halves[module]
        return [
            f"{names[half]} has size {list(self._tensors.specs[names[half]].dims)}, expected "
            f"{list(size)} (rank {rank} by {CONFIG}, layer {list(dims)})"
            for half, size in wanted.items()
            if self._tensors.specs[names[half]].dims != size
        ]


def _open(folder: Path) -> HfTensors:
    for name in (SAFETENSORS, BIN):
        if (folder / name).is_file():
            return HfTensors(folder, [folder / name])
    raise UserError(f"{folder} has a {CONFIG} but neither {SAFETENSORS} nor {BIN}")


def _missing(config: PeftConfig, found: set[str], model: set[str]) -> list[str]:
    """Pairs that the configuration announces and the file lacks."""
    lines = []
    if not isinstance(config.target_modules, str):
        lines += [
            f"target_modules names {target}, but no pair is for it"
            for target in config.target_modules
            if not any(_targeted(module, (target,)) for module in found)
        ]
        if config.all_layers:
            kinds = {_LAYER.sub(".*.", module) for module in found}
            absent = [m for m in sorted(model - found) if _LAYER.sub(".*.", m) in kinds]
            named = [m for m in absent if _targeted(m, config.target_modules)]
            lines += [f"{module} has no pair, other layers have" for module in named]
    return lines


def _targeted(module: str, targets: tuple[str, ...]) -> bool:
    return any(module == target or module.endswith(f".{target}") for target in targets)
