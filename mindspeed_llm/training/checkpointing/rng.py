"""The state of every random generator of a rank, in plain values that load safely."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from megatron.core import tensor_parallel

from mindspeed.device import Device


def rng_state(device: Device) -> dict[str, Any]:
    """Python's, numpy's, torch's, the device's and Megatron's generators of this rank."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "random_rng_state": [version, list(internal), gauss],
        "np_rng_state": [name, keys.tolist(), position, has_gauss, cached],
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": device.get_rng_state(),
        "rng_tracker_states": dict(tensor_parallel.get_cuda_rng_tracker().get_states()),
    }


def restore_rng_state(state: dict[str, Any], device: Device) -> None:
    """Put every generator back to where :func:`rng_state` found it."""
    version, internal, gauss = state["random_rng_state"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["np_rng_state"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch_rng_state"])
    device.set_rng_state(state["cuda_rng_state"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["rng_tracker_states"])
