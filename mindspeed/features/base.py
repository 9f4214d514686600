"""What a feature is: a named group of patches with a level and the devices that it works on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from mindspeed.patching import ALL_DEVICES, Patch


class Level(IntEnum):
    """How much the adaptor changes (``--optimization-level``, MINDSPEED_OPTIMIZATION_LEVEL)."""

    REQUIRED = 0
    """Only what Megatron-Core needs to run on this device; plain reference operators."""
    OPERATORS = 1
    """And fused operators in place of Megatron's own."""
    FULL = 2
    """And faster algorithms around them (optimizer, gradient norm). The default."""


@dataclass(frozen=True)
class Feature:
    """A group of patches that is switched on together."""

    name: str
    level: Level
    patches: tuple[Patch, ...] = ()
    devices: tuple[str, ...] = ALL_DEVICES
