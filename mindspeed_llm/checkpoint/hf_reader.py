"""The tensors of a Hugging Face folder: safetensors or ``.bin``, one file or sharded, mapped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.planned_file import TensorSpec
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.checkpoint.safetensors_file import DTYPE_NAMES, INDEX, SINGLE, read_header
from mindspeed_llm.files import strict_json

BIN_SINGLE = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class HfTensors:
    """Tensors of a folder by name; ``specs`` is read at once, tensors when asked for.

    Args:
        folder: the folder.
        files: its weight files, where they do not have the names of a model's.

    Raises:
        UserError: for a missing or damaged file, an index that disagrees with the files, a name
            that two files hold, or a type other than fp32, fp16 and bf16.
    """

    def __init__(self, folder: Path, files: list[Path] | None = None) -> None:
        self.folder = folder
        self.specs: dict[str, TensorSpec] = {}
        index, self.files = (None, files) if files else weight_files(folder)
        self._where: dict[str, Any] = {}
        self._lock = threading.Lock()
        for file in self.files:
            self._add(file)
        if index is not None:
            self._compare(index)

    def get(self, name: str) -> Tensor:
        """The tensor, as a view of the mapped file where possible."""
        with self._lock:
            return self._where[name].get_tensor(name)

    def _add(self, file: Path) -> None:
        opened = _BinFile(file) if file.suffix == ".bin" else _SafeFile(file)
        for name, spec in opened.specs().items():
            if name in self.specs:
                raise UserError(f"{self.folder}: {name} is in two files, one of them {file.name}")
            self.specs[name] = spec
            self._where[name] = opened

    def _compare(self, index: dict[str, str]) -> None:
        lost = [name for name in index if name not in self.specs]
        if lost:
            raise UserError(
                f"{self.folder}: the index names {len(lost)} tensors that no file holds: "
                f"{', '.join(lost[:4])}; download the folder again"
            )
        elsewhere = [name for name in index if self._where[name].path.name != index[name]]
        if elsewhere:
            name = elsewhere[0]
            raise UserError(
                f"{self.folder}: the index says that {name} is in {index[name]}, but it is in "
                f"{self._where[name].path.name} ({len(elsewhere)} such tensors): index and files "
                "are of two downloads; download the folder again"
            )


def weight_files(folder: Path) -> tuple[dict[str, str] | None, list[Path]]:
    """The index's name -> file table if there is an index, and the weight files.

    Raises:
        UserError: there are none, or some that the index names are missing.
    """
    for single, index_name in ((SINGLE, INDEX), (BIN_SINGLE, BIN_INDEX)):
        if (folder / index_name).is_file():
            table = _read_index(folder / index_name)
            files = [folder / name for name in sorted(set(table.values()))]
            absent = [path.name for path in files if not path.is_file()]
            if absent:
                raise UserError(
                    f"{folder}: {len(absent)} of {len(files)} shards that {index_name} names are "
                    f"missing: {', '.join(absent[:6])}; download them"
                )
            return table, files
        if (folder / single).is_file():
            return None, [folder / single]
    stray = sorted(p.name for p in folder.glob("*.safetensors"))
    hint = f"it holds {', '.join(stray[:4])} but no {INDEX}" if stray else "no weights at all"
    raise UserError(f"{folder} has no {SINGLE} or {INDEX}: {hint}; download it again")


def _read_index(path: Path) -> dict[str, str]:
    try:
        table = strict_json(path.read_bytes())["weight_map"]
        names = [str(file) for file in table.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a weight index ({error!r}); download it again") from None
    outside = [name for name in names if Path(name).name != name]
    if outside or not names:
        raise UserError(f"{path} names no files, or files outside its folder: {outside[:3]}")
    return table


class _SafeFile:
    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        self._header = read_header(path)
        try:
            self._file = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path} cannot be opened: {error}; download it again") from None

    def specs(self) -> dict[str, TensorSpec]:
        for name, stored in self._header.items():
            if stored.dtype not in _DTYPES:
                raise _not_floating(self.path, name, stored.dtype)
        return {
            name: TensorSpec(_DTYPES[stored.dtype], stored.dims)
            for name, stored in self._header.items()
        }

    def get_tensor(self, name: str) -> Tensor:
        return self._file.get_tensor(name)


class _BinFile:
    def __init__(self, path: Path) -> None:
        content = load_file(path)
        if not isinstance(content, dict):
            raise UserError(f"{path} holds a {type(content).__name__}, not tensors by name")
        self.path = path
        self._tensors = {name: t for name, t in content.items() if torch.is_tensor(t)}

    def specs(self) -> dict[str, TensorSpec]:
        for name, tensor in self._tensors.items():
            if tensor.dtype not in DTYPE_NAMES:
                raise _not_floating(self.path, name, str(tensor.dtype))
        return {name: TensorSpec.of(tensor) for name, tensor in self._tensors.items()}

    def get_tensor(self, name: str) -> Tensor:
        return self._tensors[name]


def _not_floating(path: Path, name: str, kind: str) -> UserError:
    return UserError(
        f"{path}: {name} is stored as {kind}, which looks quantised; only fp32, fp16 and bf16 "
        "weights can be converted. Dequantise the model first (transformers can: load it, then "
        "save_pretrained)"
    )
