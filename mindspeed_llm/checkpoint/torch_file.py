"""Planning a ``torch.save`` file: everything but the tensors' bytes is written at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mindspeed_llm.checkpoint.planned_file import PlannedFile, Slot, TensorSpec


@dataclass(frozen=True)
class Stack:
    """A tensor that is written piece by piece.

    Attributes:
        whole: what the file says of it.
        pieces: what lies in its memory, one after the other.
    """

    whole: TensorSpec
    pieces: tuple[TensorSpec, ...]


Planned = TensorSpec | Stack


def plan_torch_file(
    path: Path,
    content: dict[str, Any],
    state_dicts: dict[str, dict[str, Planned]],
    held: frozenset[str] = frozenset(),
) -> PlannedFile:
    """Create a file that ``torch.load`` reads, with empty space for the tensors.

    Args:
        path: the file to create.
        content: top-level entries without tensors (``args``, ``iteration``, …).
        state_dicts: key of the file's dict (``model``, ``model0``, …) -> name -> tensor.
        held: slots that an earlier run filled; with any, the file is there already.

    Returns:
        The open file; its slots are named ``key/name``, those of pieces ``key/name#0``, ….
    """
    tensors = {
        key: {name: _untouched(whole_of(tensor)) for name, tensor in planned.items()}
        for key, planned in state_dicts.items()
    }
    if not held:
        with torch.serialization.skip_data():
            torch.save({**content, **tensors}, path)
    reader: Any = torch._C.PyTorchFileReader(str(path))
    # Storages are numbered in the order in which pickle meets them, which is the dicts' order.
    planned = (
        (f"{key}/{name}", tensor)
        for key, tensors_of_key in state_dicts.items()
        for name, tensor in tensors_of_key.items()
    )
    slots = {
        slot_name: slot
        for number, (name, tensor) in enumerate(planned)
        for slot_name, slot in _slots(name, tensor, reader.get_record_offset(f"data/{number}"))
    }
    return PlannedFile(path, slots, held)


def whole_of(planned: Planned) -> TensorSpec:
    """Type and size of the tensor as a whole."""
    return planned.whole if isinstance(planned, Stack) else planned


def _slots(name: str, planned: Planned, offset: int) -> Iterator[tuple[str, Slot]]:
    """(slot name, slot) of the tensor that begins at ``offset``."""
    if not isinstance(planned, Stack):
        yield name, Slot(offset, planned)
        return
    for number, spec in enumerate(planned.pieces):
        yield f"{name}#{number}", Slot(offset, spec)
        offset += spec.nbytes


def _untouched(spec: TensorSpec) -> torch.Tensor:
    """A tensor that takes address space only: no page of it is ever touched.

    Not ``torch.empty``, which fills the memory under ``torch.use_deterministic_algorithms``.
    """
    storage = torch.UntypedStorage(spec.nbytes)
    return torch.empty(0, dtype=spec.dtype).set_(storage).view(spec.dims)
