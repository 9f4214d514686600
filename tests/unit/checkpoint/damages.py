"""Damaged Hugging Face folders: what breaks them, and what a message about it must hold."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.unit.checkpoint.tiny import edit_config, store, weights

Spoil = Callable[[Path], object]

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"
NORM = "model.norm.weight"


def shard(folder: Path) -> dict[str, str]:
    """Divide the folder's weights over two files; returns the index's table."""
    tensors = weights(folder)
    names = list(tensors)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    table = {}
    for file, half in zip(SHARDS, halves, strict=True):
        save_file({name: tensors[name] for name in half}, folder / file)
        table |= dict.fromkeys(half, file)
    (folder / MODEL).unlink()
    write_index(folder, table)
    return table


def write_index(folder: Path, table: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": table}))


def sharded(change: Callable[[Path, dict[str, str]], object]) -> Spoil:
    """Damage to a folder of two shards."""
    return lambda folder: change(folder, shard(folder))


def header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Change the header of the weight file, the data staying where they are."""

    def spoil(folder: Path) -> None:
        data = (folder / MODEL).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        content = json.loads(data[8 : 8 + length])
        change(content)
        put_header(folder, json.dumps(content).encode(), data[8 + length :])

    return spoil


def put_header(folder: Path, text: bytes, data: bytes) -> None:
    (folder / MODEL).write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(name: str, **values: object) -> Spoil:
    """Change what the header says of one tensor."""
    return header(lambda content: content[name].update(values))


def raw(change: Callable[[bytes], bytes]) -> Spoil:
    """Change the bytes of the weight file."""

    def spoil(folder: Path) -> None:
        (folder / MODEL).write_bytes(change((folder / MODEL).read_bytes()))

    return spoil


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Spoil:
    """Change the tensors, in a file that is whole."""

    def spoil(folder: Path) -> None:
        content = weights(folder)
        change(content)
        store(folder, content)

    return spoil


def text(name: str, content: str | bytes) -> Spoil:
    """Replace a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def config(**changes: object) -> Spoil:
    """Change keys of ``config.json``."""
    return lambda folder: edit_config(folder, **changes)


def without(*keys: str) -> Spoil:
    """Take keys out of ``config.json``."""

    def spoil(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        kept = {key: value for key, value in content.items() if key not in keys}
        (folder / "config.json").write_text(json.dumps(kept))

    return spoil


def duplicate_key(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}") + ', "num_hidden_layers": 3}')


def duplicate_tensor(folder: Path) -> None:
    data = (folder / MODEL).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    line = json.dumps({NORM: {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}})[1:-1] + ","
    put_header(folder, b"{" + line.encode() + data[9 : 8 + length], data[8 + length :])


class Foreign:
    """A class that a weight file has no business to hold."""


def as_bin(content: object) -> Spoil:
    """A ``.bin`` file in place of safetensors."""

    def spoil(folder: Path) -> None:
        (folder / MODEL).unlink()
        torch.save(content, folder / "pytorch_model.bin")

    return spoil


def plain_pickle(folder: Path) -> None:
    (folder / MODEL).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Foreign()}))


def shorten(folder: Path, name: str, by: int) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-by])


DAMAGES: dict[str, tuple[Spoil, str]] = {
    # shards and their index
    "shard missing": (
        sharded(lambda f, _: (f / SHARDS[1]).unlink()),
        "1 of 2 shards .* are missing: model-00002",
    ),
    "shard of zero bytes": (
        sharded(lambda f, _: (f / SHARDS[1]).write_bytes(b"")),
        r"model-00002-of-00002.safetensors \(0 bytes\) is truncated",
    ),
    "shard cut off": (
        sharded(lambda f, _: shorten(f, SHARDS[0], 500)),
        "model-00001.*bytes of tensors are cut off",
    ),
    "index names an absent tensor": (
        sharded(lambda f, t: write_index(f, {**t, "model.ghost": SHARDS[0]})),
        "1 tensors that no file holds: model.ghost",
    ),
    "index of another download": (
        sharded(lambda f, t: write_index(f, {**t, NORM: SHARDS[0], "lm_head.weight": SHARDS[1]})),
        "the index says that .* two downloads",
    ),
    "index leads outside": (
        sharded(lambda f, t: write_index(f, {**t, NORM: "../evil.safetensors"})),
        "outside its folder",
    ),
    "index is no JSON": (sharded(lambda f, _: text(INDEX, "{")(f)), "is not a weight index"),
    "index names a tensor twice": (
        sharded(lambda f, _: text(INDEX, '{"weight_map": {"a": "b", "a": "c"}}')(f)),
        "the key 'a' stands there twice",
    ),
    "tensor in two shards": (
        sharded(lambda f, _: save_file({NORM: torch.ones(64)}, f / SHARDS[0])),
        f"{NORM} is in two files|no file holds",
    ),
    # headers
    "header length absurd": (
        raw(lambda data: struct.pack("<Q", 1 << 62) + data[8:]), "header should be 4,611,686,0"
    ),
    "header longer than the file": (
        raw(lambda data: struct.pack("<Q", len(data)) + data[8:]), "its header should be"
    ),
    "header cut off": (raw(lambda data: data[:100]), "its header should be"),
    "shorter than a header": (raw(lambda data: data[:5]), r"\(5 bytes\).*too short"),
    "header is no JSON": (
        raw(lambda data: data[:8] + b"[" + data[9:]), "its header cannot be read"
    ),
    "header names a tensor twice": (duplicate_tensor, f"the key '{NORM}' stands there twice"),
    "header without offsets": (
        header(lambda c: c[NORM].pop("data_offsets")), "its header cannot be read"
    ),
    "tensors overlap": (
        header(lambda c: c[NORM].update(data_offsets=[256, 512])),
        "overlap or leave a gap",
    ),
    "size against offsets": (
        entry(NORM, shape=[63]), r"norm.weight is said to be F32 \[63\] in 256"
    ),
    "data cut off": (raw(lambda data: data[:-1000]), "bytes of tensors are cut off"),
    "data followed by junk": (raw(lambda data: data + b"x" * 10), "followed by something else"),
    "web page instead of weights": (
        raw(lambda data: b"<!DOCTYPE html><html>rate limit</html>"), "truncated or damaged"
    ),
    "pointer of git-lfs": (
        raw(lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 9\n"),
        "truncated or damaged",
    ),
    # tensors
    "extra tensor": (
        tensors(lambda t: t.update({"model.layers.9.x": torch.zeros(2)})),
        "not part of this model: model.layers.9.x",
    ),
    "missing tensor": (tensors(lambda t: t.pop(Q_PROJ)), f"missing: {Q_PROJ}"),
    "wrong shape": (
        tensors(lambda t: t.update({Q_PROJ: torch.zeros(64, 63)})),
        r"q_proj.weight has size \[64, 63\], expected \[64, 64\]",
    ),
    "transposed": (
        tensors(lambda t: t.update({"lm_head.weight": t["lm_head.weight"].T.contiguous()})),
        r"lm_head.weight has size \[64, 131\], expected \[131, 64\]",
    ),
    "fp8 weights": (
        tensors(lambda t: t.update({Q_PROJ: t[Q_PROJ].to(torch.float8_e4m3fn)})),
        f"{Q_PROJ} is stored as F8_E4M3, which looks quantised",
    ),
    "4-bit weights": (
        tensors(lambda t: t.update({Q_PROJ: torch.zeros(32, 64, dtype=torch.uint8)})),
        f"{Q_PROJ} is stored as U8, which looks quantised",
    ),
    "mixed types in one tensor": (
        tensors(lambda t: t.update({Q_PROJ: t[Q_PROJ].bfloat16()})),
        r"q_proj.*different types \(bf16 and fp32\); choose one",
    ),
    # config.json
    "config without architectures and model type": (
        without("architectures", "model_type"), "neither architectures nor model_type"
    ),
    "config of another family": (
        config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", rope_scaling=None,
               rope_parameters=None, head_dim=8),
        "missing: .*q_norm",
    ),
    "config without a size": (without("num_hidden_layers"), "num_hidden_layers"),
    "config with text for a size": (
        config(hidden_size="big"), "hidden_size is 'big', not an integer"
    ),
    "config with a fraction for a size": (
        config(intermediate_size=96.5), "intermediate_size is 96.5, not an integer"
    ),
    "config with a negative size": (config(num_hidden_layers=-2), "num_layers is -2"),
    "config with a key twice": (duplicate_key, "the key 'num_hidden_layers' stands there twice"),
    "config cut off": (text("config.json", '{"model_type": "lla'), "is not valid JSON"),
    "config in another encoding": (text("config.json", b"\xff\xfe{"), "is not valid JSON"),
    "config of quantised weights": (
        config(quantization_config={"quant_method": "fp8"}), "dequantise the weights first"
    ),
    "rope scaling unknown": (config(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "spiral"),
    "activation unknown": (config(hidden_act="relu6"), "relu6"),
    # .bin files
    "bin with a foreign class": (as_bin({NORM: Foreign()}), "refused.*Foreign"),
    "bin that is a plain pickle": (plain_pickle, "damaged, or holds objects that could run code"),
    "bin without tensors by name": (as_bin([torch.ones(3)]), "holds a list, not tensors by name"),
    "bin cut off": (
        lambda f: (as_bin(weights(f))(f), shorten(f, "pytorch_model.bin", 2000)),
        "pytorch_model.bin.*(truncated|damaged)",
    ),
}  # fmt: skip
