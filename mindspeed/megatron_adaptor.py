"""The one line: ``import mindspeed.megatron_adaptor`` makes Megatron-Core run on this device.

The device is chosen (``MINDSPEED_DEVICE`` overrides) and the patches of the optimization level are
applied, to the modules that are loaded and to those still to come; torch and megatron may have been
imported before or not. ``MINDSPEED_DISABLE=1`` makes the import do nothing. The level is taken from
``--optimization-level`` on the command line, else from ``MINDSPEED_OPTIMIZATION_LEVEL``, else 2.
"""

from __future__ import annotations

import os
import sys

from mindspeed.device import Device, get_device
from mindspeed.errors import UserError
from mindspeed.features import FEATURES, Level
from mindspeed.ops import dispatch
from mindspeed.patching import PatchInfo, patcher

FLAG = "--optimization-level"
ENV_LEVEL = "MINDSPEED_OPTIMIZATION_LEVEL"
ENV_DISABLE = "MINDSPEED_DISABLE"


def requested_level(argv: list[str] | None = None) -> Level:
    """The level asked for on the command line or in the environment.

    Raises:
        UserError: it is not 0, 1 or 2.
    """
    argv = sys.argv if argv is None else argv
    source, text = ENV_LEVEL, os.environ.get(ENV_LEVEL, "2")
    for position, argument in enumerate(argv):
        if argument == FLAG and position + 1 < len(argv):
            source, text = FLAG, argv[position + 1]
        elif argument.startswith(FLAG + "="):
            source, text = FLAG, argument.partition("=")[2]
    if text not in {"0", "1", "2"}:
        raise UserError(f"{source} is {text!r}: use 0 (required patches only), 1 or 2 (all)")
    return Level(int(text))


def apply(level: int = Level.FULL) -> Device:
    """Apply the patches of ``level`` for this device; again is harmless.

    Raises:
        UserError: the device that ``MINDSPEED_DEVICE`` names is absent.
        PatchError: a patch does not fit the installed packages; nothing stays patched.
    """
    device = get_device()
    if patcher.active:
        return device
    patcher.clear()
    dispatch.set_level(level)
    for feature in FEATURES:
        if feature.level <= level and device.name in feature.devices:
            patches = [patch for patch in feature.patches if device.name in patch.devices]
            patcher.add(feature.name, feature.level, patches)
    patcher.apply()
    return device


def revert() -> None:
    """Restore every symbol that :func:`apply` replaced."""
    patcher.revert()


def patches() -> list[PatchInfo]:
    """What is patched and why, in order of application."""
    return patcher.listing()


if os.environ.get(ENV_DISABLE, "0") in ("", "0"):
    apply(requested_level())
