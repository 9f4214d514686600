"""Keeps the memory that a step on a CPU frees for the next step (level 2)."""

from __future__ import annotations

from mindspeed.device.host_memory import keep_freed_memory
from mindspeed.features.base import Feature, Level
from mindspeed.patching import ProcessPatch

FEATURE = Feature(
    "host-memory",
    Level.FULL,
    devices=("cpu",),
    patches=(
        ProcessPatch(
            "host-memory.keep",
            "memory given back to the system costs page faults in every step",
            "malloc trim and mmap thresholds, huge pages for tensors",
            keep_freed_memory,
            devices=("cpu",),
        ),
    ),
)
