"""Weights in a Megatron checkpoint of format ``torch_dist`` (torch.distributed.checkpoint).

Read without process groups and without unpickling anything but the classes that describe
tensors. Layers are stored stacked (``decoder.layers.mlp…``, one more leading dimension) or one by
one (``decoder.layers.3.mlp…``), and so are experts (``mlp.experts.experts.linear_fc1…``, or
``mlp.experts.experts.5.linear_fc1…``); all are understood.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
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
from mindspeed_llm.models.mapping import Mapping, layer_of
from mindspeed_llm.models.splits import Cut, TensorParallel

_MODEL_PREFIXES = ("embedding.", "decoder.", "output_layer.", "mtp.")
_LAYER = re.compile(r"^(decoder\.layers)\.(\d+)\.")
_EXPERT = re.compile(r"(\.experts)\.local_experts\.(\d+)\.")
_STATE = re.compile(r"optimizer\.state\.(\w+)\.(?:embedding|decoder|output_layer|mtp)\.")
_OPTIMIZER = re.compile(r"(chained_\d+\.)?optimizer\.")
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


def state_prefix(state: str) -> str:
    """What stands before a weight's key in that of one of its optimizer states."""
    return f"optimizer.state.{state}"


def stored_states(keys: Iterable[str]) -> set[str]:
    """Names of the optimizer states among the keys of a checkpoint."""
    return {match[1] for match in map(_STATE.match, keys) if match}


class DistSource(WeightSource):
    """Global tensors, read chunk by chunk."""

    kind = "torch_dist"
    _prefix = ""

    def __init__(
        self, root: Path, iteration: paths.Iteration, hf_cfg_dir: Path | str | None = None
    ) -> None:
        self.path = paths.iteration_folder(root, iteration)
        self.iteration = None if iteration == paths.RELEASE else iteration
        self.side_folder = side_files.find(root, hf_cfg_dir)
        common = load_file(self.path / "common.pt")
        if "args" not in common:
            raise UserError(f"{self.path}/common.pt holds no args; its model shape is unknown")
        self.common, self.args = common, common["args"]
        vocab_size = side_files.vocab_size(self.side_folder)
        self.family, self.shape, self.layout = read_metadata(self.args, vocab_size)

    @cached_property
    def _reader(self) -> FileSystemReader:
        reader = SafeReader(self.path)
        reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=True)
        return reader

    @property
    def holds_optimizer(self) -> bool:
        """Whether an optimizer's state lies beside the weights."""
        return any(map(_OPTIMIZER.match, self._keys))

    @property
    def states(self) -> set[str]:
        """Names of the optimizer's states that are stored as the weights are."""
        return stored_states(self._keys)

    def of_state(self, state: str) -> DistSource:
        """A source of one of the optimizer's states, which are named and stored as weights."""
        other = copy.copy(self)
        other.__dict__.pop("_stored", None)
        other._prefix = f"{state_prefix(state)}."
        return other

    def has(self, entry: Mapping) -> bool:
        """Whether the entry is there; an optimizer has no state of what it does not train."""
        return self._place(entry) is not None

    @property
    def _keys(self) -> Iterable[str]:
        return self._reader.read_metadata().state_dict_metadata

    @cached_property
    def _stored(self) -> dict[str, tuple[str, TensorStorageMetadata]]:
        """Canonical name -> (stored key, description) of the model's weights."""
        items = self._reader.read_metadata().state_dict_metadata.items()
        start = len(self._prefix)
        return {
            canonical_name(key[start:]): (key, value)
            for key, value in items
            if key.startswith(self._prefix)
            and key.startswith(_MODEL_PREFIXES, start)
            and is_weight(key)
            and isinstance(value, TensorStorageMetadata)
        }

    def check(self) -> None:
        found = {name: tuple(stored.size) for name, (_, stored) in self._stored.items()}
        expected: dict[str, tuple[int, ...]] = {}
        for entry in self.entries():
            dims = entry.dims(self.shape)
            if entry.split.padded:
                dims = self._padded_dims(entry)
            name, sizes, _ = self._place(entry) or (entry.megatron, (), ())
            expected[name] = (*sizes, *dims)
        raise_problems(
            self.path,
            name_problems(self.path.name, expected, found),
            "was it written by another model?",
        )

    def dtypes(self, entry: Mapping) -> set[torch.dtype]:
        return {self._find(entry).stored.properties.dtype}

    def full(self, entry: Mapping) -> Tensor:
        # Zeros that a layout added lie at the end.
        dims = entry.dims(self.shape)
        cuts = [Cut(dim, 0, length) for dim, length in enumerate(dims)]
        return self._read(self._find(entry), cuts)

    def part(self, entry: Mapping, at: TensorParallel) -> Tensor:
        dims = entry.dims(self.shape)
        cuts = entry.split.cuts(dims, at)
        if not cuts:
            return self.full(entry)
        place = self._find(entry)
        whole = {dim: Cut(dim, 0, length) for dim, length in enumerate(dims)}
        ranges = [self._read(place, list((whole | {cut.dim: cut}).values())) for cut in cuts]
        return entry.split.assemble(ranges, dims, at)

    def _padded_dims(self, entry: Mapping) -> tuple[int, ...]:
        """Size of the stored tensor, with the zeros that its layout added."""
        whole = replace(self.layout.at(self.shape, 0), size=1)
        return entry.split.part_dims(entry.dims(self.shape), whole)

    def describe(self) -> str:
        return f"Megatron torch_dist, saved at {self.layout.describe()}"

    def _place(self, entry: Mapping) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
        """(stored name, sizes of the dimensions that stack, index in each) of an entry."""
        layers, experts = self.shape.num_layers, self.shape.experts
        names: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [(entry.megatron, (), ())]
        if entry.expert is not None:
            assert experts is not None
            together = _EXPERT.sub(r"\1.experts.", entry.megatron)
            names.append((_EXPERT.sub(rf"\1.experts.{entry.expert}.", entry.megatron), (), ()))
            names.append((together, (experts.num_experts,), (entry.expert,)))
        layer = layer_of(entry.megatron)
        if layer is not None:
            names += [
                (_LAYER.sub(r"\1.", name), (layers, *sizes), (layer, *indices))
                for name, sizes, indices in names
            ]
        return next((found for found in names if found[0] in self._stored), None)

    def _find(self, entry: Mapping) -> _Place:
        found = self._place(entry)
        if found is None:
            raise UserError(f"{self.path}: {entry.megatron} is missing")
        name, _, indices = found
        return _Place(*self._stored[name], indices)

    def _read(self, place: _Place, cuts: Sequence[Cut]) -> Tensor:
        """A range of a stored tensor; only the stored pieces that it meets are read."""
        leading = len(place.indices)
        region = [Cut(dim, index, 1) for dim, index in enumerate(place.indices)]
        region += [Cut(leading + cut.dim, cut.start, cut.length) for cut in cuts]
        tensor = torch.empty([cut.length for cut in region], dtype=place.stored.properties.dtype)
        if tensor.numel():
            _read_region(self._reader, place.key, place.stored, tensor, region)
        return tensor.view([cut.length for cut in cuts])


@dataclass(frozen=True)
class _Place:
    """Where an entry's tensor lies: a stored tensor, and its index in the dimensions that stack."""

    key: str
    stored: TensorStorageMetadata
    indices: tuple[int, ...]


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


class _OneTensor(LoadPlanner):
    """Directs what is read into one tensor."""

    def __init__(self, target: Tensor) -> None:
        self._target = target

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("plans are made by _read_region")

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


def _read_region(
    reader: FileSystemReader,
    key: str,
    stored: TensorStorageMetadata,
    tensor: Tensor,
    region: Sequence[Cut],
) -> None:
    """Fill ``tensor`` with ``region`` of ``key``, from the pieces in which it is stored."""
    items, covered = [], 0
    for chunk in stored.chunks:
        starts = [max(cut.start, at) for cut, at in zip(region, chunk.offsets, strict=True)]
        ends = [
            min(cut.start + cut.length, at + size)
            for cut, at, size in zip(region, chunk.offsets, chunk.sizes, strict=True)
        ]
        lengths = [end - start for start, end in zip(starts, ends, strict=True)]
        if min(lengths, default=1) <= 0:
            continue
        covered += prod(lengths)
        into = [start - cut.start for start, cut in zip(starts, region, strict=True)]
        within = [start - at for start, at in zip(starts, chunk.offsets, strict=True)]
        items.append(
            ReadItem(
                type=LoadItemType.TENSOR,
                dest_index=MetadataIndex(key),
                dest_offsets=torch.Size(into),
                storage_index=MetadataIndex(key, chunk.offsets),
                storage_offsets=torch.Size(within),
                lengths=torch.Size(lengths),
            )
        )
    if covered != tensor.numel():
        raise UserError(f"{reader.path}: the stored pieces of {key} do not cover it")
    try:
        reader.read_data(LoadPlan(items), _OneTensor(tensor)).wait()
    except (OSError, RuntimeError, EOFError, KeyError) as error:
        raise UserError(
            f"{reader.path}: {key} cannot be read ({error}); a file is damaged"
        ) from None
