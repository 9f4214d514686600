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
    numpy_state = np.random.get_state(legacy=False)
    return {
        "random_rng_state": [version, list(internal), gauss],
        "np_rng_state": _plain(numpy_state),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": device.get_rng_state(),
        "rng_tracker_states": dict(tensor_parallel.get_cuda_rng_tracker().get_states()),
    }


def restore_rng_state(state: dict[str, Any], device: Device) -> None:
    """Put every generator back to where :func:`rng_state` found it."""
    version, internal, gauss = state["random_rng_state"]
    random.setstate((version, tuple(internal), gauss))
    numpy_state = dict(state["np_rng_state"])
    inner = dict(numpy_state["state"])
    inner["key"] = np.array(inner["key"], dtype=np.uint32)
    np.random.set_state({**numpy_state, "state": inner})
    torch.set_rng_state(state["torch_rng_state"])
    device.set_rng_state(state["cuda_rng_state"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["rng_tracker_states"])


def _plain(value: Any) -> Any:
    """Dicts and numbers in place of numpy's own types."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
