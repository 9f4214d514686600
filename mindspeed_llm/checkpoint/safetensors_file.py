"""Planning a safetensors file (header length, JSON header, raw data), and dividing into shards.

Format: https://github.com/huggingface/safetensors (8 bytes little-endian header length, then the
header with dtype, shape and data offsets of each tensor, then the data without gaps).
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import torch

from mindspeed_llm.checkpoint.planned_file import PlannedFile, Slot, TensorSpec

SHARD_BYTES = 5_000_000_000
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPE_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


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
