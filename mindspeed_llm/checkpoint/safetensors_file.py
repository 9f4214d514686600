"""safetensors files: planning one, dividing into shards, and reading a header with every check.

Format: https://github.com/huggingface/safetensors (8 bytes little-endian header length, then the
header with dtype, shape and data offsets of each tensor, then the data without gaps).
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.planned_file import PlannedFile, Slot, TensorSpec
from mindspeed_llm.files import strict_json

SHARD_BYTES = 5_000_000_000
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1}
_LONGEST_HEADER = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True)
class StoredTensor:
    """What a header says of one tensor: type by its name in the format, and place in the data."""

    dtype: str
    dims: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return self.end - self.start


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, without their data.

    Raises:
        UserError: whatever is wrong with the header, or if the data do not fit it.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not length:
            _damaged(path, size, "it is too short to hold anything")
        if length > min(size - 8, _LONGEST_HEADER):
            _damaged(path, size, f"its header should be {length:,} bytes long")
        text = file.read(length)
    try:
        header = strict_json(text)
        header.pop("__metadata__", None)
        tensors = {name: _stored(value) for name, value in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _damaged(path, size, f"its header cannot be read ({error or type(error).__name__})")
    _check_places(path, size, tensors, size - 8 - length)
    return tensors


def _stored(value: dict[str, Any]) -> StoredTensor:
    start, end = value["data_offsets"]
    return StoredTensor(value["dtype"], tuple(value["shape"]), start, end)


def _check_places(path: Path, size: int, tensors: dict[str, StoredTensor], data_bytes: int) -> None:
    """The tensors must follow each other without gaps, and fill the file."""
    for name, stored in tensors.items():
        item = _ITEM_BYTES.get(stored.dtype)
        if item is not None and stored.nbytes != item * prod(stored.dims):
            what = f"{stored.dtype} {list(stored.dims)} in {stored.nbytes:,} bytes"
            _damaged(path, size, f"{name} is said to be {what}")
    places = sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end))
    if places and places[0][1].start:
        _damaged(path, size, f"its data begin with a gap before {places[0][0]}")
    for (before, first), (after, second) in pairwise(places):
        if first.end != second.start:
            _damaged(path, size, f"{before} and {after} overlap or leave a gap")
    end = places[-1][1].end if places else 0
    if end != data_bytes:
        kind = "cut off" if data_bytes < end else "followed by something else"
        _damaged(path, size, f"{end:,} bytes of tensors are {kind}; there are {data_bytes:,}")


def _damaged(path: Path, size: int, what: str) -> NoReturn:
    raise UserError(
        f"{path} ({size:,} bytes) is truncated or damaged: {what}; download it again"
    ) from None


def plan_safetensors_file(
    path: Path, specs: dict[str, TensorSpec], held: frozenset[str] = frozenset()
) -> PlannedFile:
    """Create a safetensors file with its header and empty space for the tensors of ``specs``.

    Args:
        held: tensors that an earlier run wrote; with any, the file is there already.
    """
    # Wide types first keeps every tensor aligned to its element size.
    ordered = sorted(specs.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, spec in ordered:
        start, end = end, end + spec.nbytes
        header[name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": list(spec.dims),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if not held:
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            os.truncate(file.fileno(), file.tell() + end)
    base = 8 + len(text)
    offsets = {name: header[name]["data_offsets"][0] for name in specs}
    slots = {name: Slot(base + offsets[name], specs[name]) for name in specs}
    return PlannedFile(path, slots, held)


def shard(
    specs: dict[str, TensorSpec], limit: int = SHARD_BYTES
) -> dict[str, dict[str, TensorSpec]]:
    """File name -> its tensors, in order; each file at most ``limit`` bytes of data."""
    groups: list[dict[str, TensorSpec]] = [{}]
    size = 0
    for name, spec in specs.items():
        if groups[-1] and size + spec.nbytes > limit:
            groups.append({})
            size = 0
        groups[-1][name] = spec
        size += spec.nbytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    total = len(groups)
    return {f"model-{i:05d}-of-{total:05d}.safetensors": g for i, g in enumerate(groups, start=1)}


def index_json(shards: dict[str, dict[str, TensorSpec]]) -> str:
    """Text of the index file that names each tensor's shard."""
    total = sum(spec.nbytes for group in shards.values() for spec in group.values())
    weight_map = {name: file for file, group in shards.items() for name in group}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2) + "\n"
