"""Planning a ``torch.save`` file: everything but the tensors' bytes is written at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mindspeed_llm.checkpoint.planned_file import PlannedFile, Slot, TensorSpec


def plan_torch_file(
    path: Path, content: dict[str, Any], state_dicts: dict[str, dict[str, TensorSpec]]
) -> PlannedFile:
    """Create a file that ``torch.load`` reads, with empty space for the tensors.

    Args:
        path: the file to create.
        content: top-level entries without tensors (``args``, ``iteration``, …).
        state_dicts: key of the file's dict (``model``, ``model0``, …) -> name -> spec.

    Returns:
        The open file; its slots are named ``key/name``.
    """
    tensors = {
        key: {name: _untouched(spec) for name, spec in specs.items()}
        for key, specs in state_dicts.items()
    }
    with torch.serialization.skip_data():
        torch.save({**content, **tensors}, path)
    reader: Any = torch._C.PyTorchFileReader(str(path))
    # Storages are numbered in the order in which pickle meets them, which is the dicts' order.
    names = (
        (f"{key}/{name}", spec)
        for key, specs in state_dicts.items()
        for name, spec in specs.items()
    )
    slots = {
        name: Slot(reader.get_record_offset(f"data/{number}"), spec)
        for number, (name, spec) in enumerate(names)
    }
    return PlannedFile(path, slots)


def _untouched(spec: TensorSpec) -> torch.Tensor:
    """A tensor that takes address space only: no page of it is ever touched.

    Not ``torch.empty``, which fills the memory under ``torch.use_deterministic_algorithms``.
    """
    storage = torch.UntypedStorage(spec.nbytes)
    return torch.empty(0, dtype=spec.dtype).set_(storage).view(spec.dims)
