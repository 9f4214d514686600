"""What an accepted flag does: takes effect, is about speed only, refines another, is refused.

Every flag carries one :class:`Effect` in its metadata. A flag is a promise: it takes effect, or
the start-up summary says in one line why it has none here, or it is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ALL_DEVICES = frozenset({"cpu", "cuda", "npu"})


class Kind(Enum):
    """The four things that can become of a flag that was given."""

    ACTIVE = "active"
    NEUTRAL = "neutral"
    UNSUPPORTED = "unsupported"
    PART_OF = "part of another flag"


@dataclass(frozen=True)
class Effect:
    """What becomes of a flag.

    Attributes:
        kind: see :class:`Kind`.
        note: NEUTRAL: why it may have no effect; UNSUPPORTED: the feature that is missing.
        devices: NEUTRAL: the devices on which it does take effect.
        parents: PART_OF: the dests of the flags without any of which this one means nothing.
        harmless: UNSUPPORTED: values, besides the default, that ask for nothing missing.
    """

    kind: Kind
    note: str = ""
    devices: frozenset[str] = ALL_DEVICES
    parents: tuple[str, ...] = ()
    harmless: tuple[object, ...] = ()


ACTIVE = Effect(Kind.ACTIVE)


def neutral(note: str, *devices: str) -> Effect:
    """Speed or memory only, no number changes; takes effect on ``devices`` (none: nowhere yet)."""
    return Effect(Kind.NEUTRAL, note, frozenset(devices))


ALWAYS = neutral("", *ALL_DEVICES)
"""Asks for what happens anyway, on every device."""


def unsupported(feature: str, *harmless: object) -> Effect:
    """Would change the model, loss, data, optimizer or layout, and ``feature`` is missing."""
    return Effect(Kind.UNSUPPORTED, feature, harmless=harmless)


def part_of(*parents: str) -> Effect:
    """Means something only beside one of ``parents``; alone it is reported as having no effect."""
    return Effect(Kind.PART_OF, parents=parents)
