"""Weights in a Megatron checkpoint of format ``torch_dist`` (torch.distributed.checkpoint).

Read without process groups and without unpickling anything but the classes that describe
tensors. Layers are stored stacked (``decoder.layers.mlp…``, one more leading dimension) or one by
one (``decoder.layers.3.mlp…``); both are understood.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths, side_files
from mindspeed_llm.checkpoint.metadata import read_metadata
from mindspeed_llm.checkpoint.placement import canonical_name, is_weight
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.checkpoint.source import WeightSource, name_problems, raise_problems
from mindspeed_llm.models.mapping import Mapping, layer_of, with_layer

_MODEL_PREFIXES = ("embedding.", "decoder.", "output_layer.")
_CHECKPOINT = "torch.distributed.checkpoint"
# Pairs, not modules: a module also holds what it imports (``os``, for one).
_SAFE_CLASSES = {
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("torch.serialization", "_get_layout"),
    (f"{_CHECKPOINT}.filesystem", "_StorageInfo"),
    *((f"{_CHECKPOINT}.planner", name) for name in ("SavePlan", "TensorWriteData", "WriteItem")),
    (f"{_CHECKPOINT}.planner", "WriteItemType"),
    *(
        (f"{_CHECKPOINT}.metadata", name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}


class DistSource(WeightSource):
    """Global tensors, read chunk by chunk."""

    kind = "torch_dist"

    def __init__(
        self, root: Path, iteration: paths.Iteration, hf_cfg_dir: Path | str | None = None
    ) -> None:
        self.path = paths.iteration_folder(root, iteration)
        self.iteration = None if iteration == paths.RELEASE else iteration
        self.side_folder = side_files.find(root, hf_cfg_dir)
        common = load_file(self.path / "common.pt")
        if "args" not in common:
            raise UserError(f"{self.path}/common.pt holds no args; its model shape is unknown")
        vocab_size = side_files.vocab_size(self.side_folder)
        self.family, self.shape, self.layout = read_metadata(common["args"], vocab_size)

    @cached_property
    def _reader(self) -> FileSystemReader:
        reader = SafeReader(self.path)
        reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
        return reader

    @cached_property
    def _stored(self) -> dict[str, tuple[str, TensorStorageMetadata]]:
        """Canonical name -> (stored key, description) of the model's weights."""
        items = self._reader.read_metadata().state_dict_metadata.items()
        return {
            canonical_name(key): (key, value)
            for key, value in items
            if key.startswith(_MODEL_PREFIXES)
            and is_weight(key)
            and isinstance(value, TensorStorageMetadata)
        }

    def check(self) -> None:
        expected: dict[str, tuple[int, ...]] = {}
        found = {name: tuple(value.size) for name, (_, value) in self._stored.items()}
        for entry in self.entries():
            dims = entry.dims(self.shape)
            if entry.split.padded:
                dims = self._padded_dims(entry)
            if entry.megatron in self._stored or layer_of(entry.megatron) is None:
                expected[entry.megatron] = dims
            else:
                expected[_stacked(entry.megatron)] = (self.shape.num_layers, *dims)
        raise_problems(
            self.path,
            name_problems(self.path.name, expected, found),
            "was it written by another model?",
        )

    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        return {self._find(entry)[1].properties.dtype}

    def full(self, entry: Mapping) -> Tensor:
        key, stored, layer = self._find(entry)
        tensor = torch.empty(
            stored.size[1:] if layer is not None else stored.size, dtype=stored.properties.dtype
        )
        _read(self._reader, key, stored, tensor, layer)
        return entry.split.join([tensor], entry.dims(self.shape))

    def _padded_dims(self, entry: Mapping) -> tuple[int, ...]:
        """Size of the stored tensor, with the zeros that its layout added."""
        whole = replace(self.layout.at(self.shape, 0), size=1)
        return entry.split.part_dims(entry.dims(self.shape), whole)

    def describe(self) -> str:
        return f"Megatron torch_dist, saved at {self.layout.describe()}"

    def _find(self, entry: Mapping) -> tuple[str, TensorStorageMetadata, int | None]:
        """(stored key, description, row of a stacked tensor or None)."""
        if entry.megatron in self._stored:
            return *self._stored[entry.megatron], None
        stacked = _stacked(entry.megatron)
        if stacked not in self._stored:
            raise UserError(f"{self.path}: {entry.megatron} is missing")
        return *self._stored[stacked], layer_of(entry.megatron)


class SafeReader(FileSystemReader):
    """PyTorch's reader, except that ``.metadata`` may only build descriptions of tensors."""

    _metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The checkpoint's table of contents.

        Raises:
            UserError: if the file is damaged or names another class.
        """
        if self._metadata is None:
            path = Path(self.path) / ".metadata"
            try:
                with open(path, "rb") as file:
                    self._metadata = _MetadataUnpickler(file, path).load()
            except (pickle.UnpicklingError, EOFError, OSError, AttributeError) as error:
                raise UserError(f"{path} is missing or damaged ({error})") from None
        return self._metadata


class _MetadataUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        safe = (module, name) in _SAFE_CLASSES
        found = super().find_class(module, name) if safe or module == "torch" else None
        if safe or isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
        raise UserError(
            f"{self._path} is refused: it would build {module}.{name}, which is no description "
            "of a tensor and could run code"
        )


def _stacked(name: str) -> str:
    """``decoder.layers.3.mlp…`` -> ``decoder.layers.mlp…``."""
    return with_layer(name, 0).replace("decoder.layers.0.", "decoder.layers.", 1)


class _OneTensor(LoadPlanner):
    """Directs what is read into one tensor."""

    def __init__(self, target: Tensor) -> None:
        self._target = target

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("plans are made by _read")

    create_local_plan = create_global_plan = finish_plan = load_bytes = set_up_planner  # type: ignore[assignment]

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        target = self._target
        for dim, (start, length) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            target = target.narrow(dim, start, length)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing to do: the target was filled in place."""


def _read(
    reader: FileSystemReader,
    key: str,
    stored: TensorStorageMetadata,
    tensor: Tensor,
    layer: int | None,
) -> None:
    """Fill ``tensor`` from the chunks of ``key``; of a stacked one, only row ``layer``."""
    target = tensor if layer is None else tensor.unsqueeze(0)
    items, covered = [], 0
    for chunk in stored.chunks:
        offsets, sizes, skip = list(chunk.offsets), list(chunk.sizes), [0] * len(chunk.sizes)
        if layer is not None:
            if not offsets[0] <= layer < offsets[0] + sizes[0]:
                continue
            skip[0], offsets[0], sizes[0] = layer - offsets[0], 0, 1
        covered += torch.Size(sizes).numel()
        items.append(
            ReadItem(
                type=LoadItemType.TENSOR,
                dest_index=MetadataIndex(key),
                dest_offsets=torch.Size(offsets),
                storage_index=MetadataIndex(key, chunk.offsets),
                storage_offsets=torch.Size(skip),
                lengths=torch.Size(sizes),
            )
        )
    if covered != target.numel():
        raise UserError(f"{reader.path}: the stored pieces of {key} do not cover it")
    try:
        reader.read_data(LoadPlan(items), _OneTensor(target)).wait()
    except (OSError, RuntimeError, EOFError, KeyError) as error:
        raise UserError(
            f"{reader.path}: {key} cannot be read ({error}); a file is damaged"
        ) from None
