"""From the flags to an adapter: which one, and whether what they say of it is true."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.lora.adapter import Adapter, Settings
from mindspeed_llm.checkpoint.lora.megatron import MegatronAdapter
from mindspeed_llm.checkpoint.lora.merge import MergedSource
from mindspeed_llm.checkpoint.lora.peft_folder import PeftAdapter, is_peft
from mindspeed_llm.checkpoint.source import WeightSource, is_megatron
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.shape import ModelShape

if TYPE_CHECKING:
    from mindspeed_llm.checkpoint.torch_source import TorchSource
    from mindspeed_llm.flags.lora import LoraFlags


def merged(source: WeightSource, flags: LoraFlags) -> WeightSource:
    """``source`` with the adapter of ``--lora-load``, if one is given, merged into it.

    Raises:
        UserError: if the adapter cannot be read or does not fit, or the flags contradict it.
    """
    stored = source.adapter if isinstance(source, MergedSource) else None
    if flags.lora_load is None:
        if stored is None:
            _refuse_without_adapter(flags)
        else:
            compare(flags, stored)
        return source
    if stored is not None:
        raise UserError(
            f"--lora-load: {source.path} already holds a LoRA adapter of its own "
            f"({stored.describe()}), and only one can be merged; leave the flag out to merge that "
            "one, and merge the other into the result"
        )
    return MergedSource(source, requested(flags, source.family, source.shape))


def with_own_adapter(source: TorchSource) -> MergedSource:
    """A checkpoint of weights and an adapter in the same files, merged.

    Raises:
        UserError: if the weights that the adapter belongs to are not there.
    """
    if not source.holds_weights:
        raise UserError(
            f"{source.path} holds a LoRA adapter without the weights that it belongs to; to merge "
            "it, name those with --load-dir and this folder with --lora-load"
        )
    return MergedSource(source, MegatronAdapter(source.path, source.family, source.shape))


def adapter_notes(source: WeightSource) -> list[str]:
    """Lines for the report on what was merged."""
    if not isinstance(source, MergedSource):
        return []
    adapter = source.adapter
    pairs = f"{len(adapter.names)} pairs, in fp32, rounded once"
    return [f"adapter   {adapter.describe()}: {pairs}", *adapter.notes]


def requested(flags: LoraFlags, family: Family, shape: ModelShape) -> Adapter:
    """The adapter of ``--lora-load`` for a model, compared with the other flags."""
    assert flags.lora_load is not None
    adapter = open_adapter(Path(flags.lora_load), family, shape, flags.lora_alpha)
    compare(flags, adapter)
    return adapter


def open_adapter(
    path: Path, family: Family, shape: ModelShape, alpha: float | None = None
) -> Adapter:
    """Open the adapter in ``path``, a PEFT folder or a Megatron checkpoint, for a model.

    Args:
        alpha: what to take where a Megatron checkpoint does not say it.

    Raises:
        UserError: if no adapter is there, or it does not fit the model.
    """
    if not path.is_dir():
        raise UserError(f"--lora-load {path} does not exist or is not a folder")
    if is_peft(path):
        return PeftAdapter(path, family, shape)
    if is_megatron(path):
        return MegatronAdapter(path, family, shape, alpha)
    found = ", ".join(sorted(p.name for p in path.iterdir())[:6]) or "nothing"
    raise UserError(
        f"--lora-load {path} holds neither a PEFT adapter (adapter_config.json) nor a Megatron "
        f"checkpoint; it holds: {found}"
    )


def compare(flags: LoraFlags, adapter: Adapter) -> None:
    """Raise UserError, with both values, for each flag that the adapter contradicts."""
    settings: Settings = adapter.settings
    lines = []
    if flags.lora_r is not None and flags.lora_r != settings.rank:
        lines.append(f"--lora-r {flags.lora_r}, but the adapter has rank {settings.rank}")
    if flags.lora_alpha is not None and flags.lora_alpha != settings.alpha:
        lines.append(
            f"--lora-alpha {flags.lora_alpha:g}, but the adapter has alpha {settings.alpha:g}"
        )
    targets = flags.lora_target_modules
    if targets and set(targets) != set(settings.targets):
        lines.append(
            f"--lora-target-modules {' '.join(targets)}, but the adapter is for "
            f"{' '.join(settings.targets)}"
        )
    if lines:
        raise UserError(
            f"flags contradict the adapter in {adapter.path}, which would give wrong weights:\n  "
            + "\n  ".join(lines)
            + "\nleave the flags out: rank, alpha and targets are read from the adapter"
        )


def _refuse_without_adapter(flags: LoraFlags) -> None:
    given = {
        "--lora-r": flags.lora_r,
        "--lora-alpha": flags.lora_alpha,
        "--lora-target-modules": flags.lora_target_modules or None,
    }
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UserError(
            f"{', '.join(names)}: there is no adapter, neither by --lora-load nor in --load-dir; "
            "name its folder with --lora-load, or leave the flags out"
        )
