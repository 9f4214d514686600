"""Sample indices on disk: which process builds them, and data sets that store them safely.

Megatron lets global rank 0 build the indices and the others wait at a barrier, then load. That
fails where a node does not see rank 0's disk, where the build outlasts the barrier's timeout, and
where a killed run left half a file. Here every group of processes that shares a folder has one
builder; files appear whole; a cache belongs to the content of its data set, not to its name alone.
The samples and their order are Megatron's own.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset
from megatron.core.datasets.indexed_dataset import IndexedDataset

from mindspeed.errors import UserError
from mindspeed_llm.console import rank
from mindspeed_llm.data.storage.indexed import bin_path, check_indexed, idx_path
from mindspeed_llm.files import atomic_path

FINGERPRINT_BLOCKS = 16
BLOCK_BYTES = 256 << 10
MESSAGE_AFTER_SECONDS = 10.0


def fingerprint(prefix: str) -> str:
    """A hash of what the sample indices of a data set depend on: the sizes and the index file.

    Of a large index, blocks spread over it stand for the whole. Equal copies on different disks
    have equal fingerprints.
    """
    index = idx_path(prefix)
    size = index.stat().st_size
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{size} {bin_path(prefix).stat().st_size}".encode())
    step = max(BLOCK_BYTES, size // FINGERPRINT_BLOCKS)
    with open(index, "rb") as file:
        for start in range(0, size, step):
            file.seek(start)
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def load_arrays(folder: str, name: str, parts: Sequence[str]) -> tuple[np.ndarray, ...] | None:
    """Map the stored arrays ``parts``; None unless all are there and whole."""
    base = Path(folder)
    try:
        if not (base / f"{name}-description.txt").is_file():
            return None
        return tuple(np.load(base / f"{name}-{part}.npy", mmap_mode="r") for part in parts)
    except (OSError, ValueError, EOFError):
        # A half-written file of some other tool, or one damaged since: it is built anew.
        return None


def store_arrays(
    folder: str, name: str, parts: Sequence[str], arrays: Sequence[np.ndarray], description: str
) -> None:
    """Store arrays; the description comes last and stands for "complete"."""
    base = Path(folder)
    try:
        for part, array in zip(parts, arrays, strict=True):
            with atomic_path(base / f"{name}-{part}.npy") as path, open(path, "wb") as file:
                np.save(file, array)
        with atomic_path(base / f"{name}-description.txt") as path:
            path.write_text(description, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{folder}: the sample indices cannot be stored ({error.strerror}). "
            "Name a folder with room that can be written, with --data-cache-path."
        ) from error


@contextlib.contextmanager
def built_in_memory(dataset: Any) -> Iterator[None]:
    """Let Megatron's own code build indices without its looking at ranks and files.

    Its mock data sets are built on every rank and never stored: just that is wanted here.
    """
    config = dataset.config
    dataset.config = copy.copy(config)
    dataset.config.mock = True
    dataset.config.path_to_cache = None
    with without_cache_warnings():
        try:
            yield
        finally:
            dataset.config = config


@contextlib.contextmanager
def without_cache_warnings() -> Iterator[None]:
    """Drop Megatron's warning that indices were not stored, where that is on purpose."""

    def keep(record: logging.LogRecord) -> bool:
        return "because path_to_cache is None" not in record.getMessage()

    loggers = [logging.getLogger(cls.__module__) for cls in (GPTDataset, BlendedDataset)]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)


class CachedGPTDataset(GPTDataset):
    """Megatron's GPT data set; its indices are stored whole, and for this very content."""

    PARTS = ("document_index", "sample_index", "shuffle_index")

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> IndexedDataset:
        """Open the token files once they are known to belong together."""
        check_indexed(dataset_path)
        return GPTDataset.build_low_level_dataset(dataset_path, config)

    def _build_document_sample_shuffle_indices(self) -> tuple[np.ndarray, ...]:
        if len(self.indices) == 0:
            raise UserError(
                f"--split {self.config.split}: the {self.index_split.name} share of "
                f"{self.dataset_path} is empty: {len(self.dataset)} documents are too few to give "
                "it one. Change --split, or give each split its own data (--valid-data-path ...)."
            )
        # The blend's own cache takes its identity from this too.
        self.unique_identifiers["content"] = fingerprint(str(self.dataset_path))
        name = cache_name(self, self.index_split.name, str(self.unique_identifiers["content"]))
        folder = self.config.path_to_cache
        arrays = load_arrays(folder, name, self.PARTS)
        if arrays is None:
            with built_in_memory(self):
                arrays = super()._build_document_sample_shuffle_indices()
            store_arrays(folder, name, self.PARTS, arrays, self.unique_description)
        return arrays


class CachedBlendedDataset(BlendedDataset):
    """Megatron's blend; its indices are stored whole."""

    PARTS = ("dataset_index", "dataset_sample_index")

    def _build_indices(self) -> tuple[np.ndarray, ...]:
        name = cache_name(self, self.split.name)
        folder = self.config.path_to_cache
        arrays = load_arrays(folder, name, self.PARTS)
        if arrays is None:
            with built_in_memory(self):
                arrays = super()._build_indices()
            store_arrays(folder, name, self.PARTS, arrays, self.unique_description)
        return arrays


def cache_name(dataset: Any, split: str, *more: str) -> str:
    """The common start of a data set's index files."""
    text = "\n".join((dataset.unique_description, *more))
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return f"{digest}-{type(dataset).__name__}-{split}"


class SequentialBuilder(BlendedMegatronDatasetBuilder):
    """Megatron's builder without its barriers: who builds when is decided outside."""

    def _build_megatron_dataset_splits(
        self, dataset_path: Any, split: Any, sizes: Any, synchronize_ranks: bool = False
    ) -> Any:
        return super()._build_megatron_dataset_splits(dataset_path, split, sizes, False)

    def _build_megatron_datasets_parallel(
        self, prefixes: list[str], split: Any, sizes_per_dataset: Any
    ) -> list[list[Any]]:
        def build(arguments: tuple[str, Any]) -> Any:
            return self._build_megatron_dataset_splits(arguments[0], split, arguments[1])

        with ThreadPoolExecutor(self.config.num_dataset_builder_threads) as pool:
            built = list(pool.map(build, zip(prefixes, sizes_per_dataset, strict=True)))
        return [list(column) for column in zip(*built, strict=True)]

    @staticmethod
    def build_generic_dataset(
        cls: Any, is_built_on_rank: Any, synchronize_ranks: bool, *args: Any
    ) -> Any:
        return (CachedBlendedDataset if cls is BlendedDataset else cls)(*args)


def choose_builder(folder: Path, wanted: bool, shared: bool | None) -> int:
    """The rank that builds for the processes which see the same ``folder`` as this one.

    Collective over all ranks.

    Args:
        folder: where this process looks for indices.
        wanted: whether this process needs the data sets.
        shared: False: each machine has its own disk (``--no-shared-storage``); None: find out.
    """
    if not dist.is_initialized():
        return 0
    me = dist.get_rank()
    seen: list[Any] = [None] * dist.get_world_size()
    token = uuid.uuid4().hex
    dist.all_gather_object(seen, (socket.gethostname(), str(folder.resolve()), wanted, token))
    run = seen[0][3]
    places: dict[tuple[str, str], int] = {}
    for other, (host, path, wants, _) in enumerate(seen):
        if wants:
            places.setdefault((host, path), other)
    mine = places.get(seen[me][:2], me)
    if shared is False:
        return mine
    # One file a place, looked up by name: a listing may come from a network disk's cache.
    if places.get(seen[me][:2]) == me:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            _token(folder, run, me).touch()
    dist.barrier()
    leaders = sorted(places.values())
    builder = next((r for r in leaders if _token(folder, run, r).exists()), mine)
    dist.barrier()
    with contextlib.suppress(OSError):
        _token(folder, run, me).unlink(missing_ok=True)
    return builder


def _token(folder: Path, run: str, leader: int) -> Path:
    return folder / f".seen-{run}-{leader}"


def built_once(
    build: Callable[[], Any], builder: int, wanted: bool, folder: Path, timeout: timedelta
) -> Any:
    """Let the builders build, then the others load what they stored.

    Collective over all ranks. An error of one rank becomes every rank's error, so that no rank
    waits for one that has gone.

    Args:
        build: builds the data sets, or loads what is stored.
        builder: the rank that builds for this one.
        wanted: whether this rank needs the data sets; else None is returned.
        timeout: how long the builders may take.
    """
    if not dist.is_initialized():
        return build()
    me = dist.get_rank()
    group = dist.new_group(backend="gloo", timeout=timeout)
    try:
        first = _attempt(build) if me == builder and wanted else (None, "")
        minutes = timeout.total_seconds() / 60
        with said_when_long(
            f"waiting for rank {builder} to build the sample indices in {folder} "
            f"(for up to {minutes:.0f} minutes)"
        ):
            _raise_any(first[1], group)
        second = _attempt(build) if me != builder and wanted else first
        _raise_any(second[1], group)
        return second[0]
    finally:
        dist.destroy_process_group(group)


def _attempt(build: Callable[[], Any]) -> tuple[Any, str]:
    """The result of ``build``, or the words of its error."""
    try:
        return build(), ""
    except UserError as error:
        return None, str(error)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _raise_any(error: str, group: Any) -> None:
    """Wait for all ranks and raise the first error of any."""
    errors: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(errors, error, group=group)
    for where, text in enumerate(errors):
        if text:
            raise UserError(text if where == rank() else f"{text} [on rank {where}]")


@contextlib.contextmanager
def said_when_long(text: str) -> Iterator[None]:
    """Print ``text`` if the block takes longer than some seconds (one process a machine)."""
    timer = threading.Timer(MESSAGE_AFTER_SECONDS, print, (text,), {"flush": True})
    timer.daemon = True
    if os.environ.get("LOCAL_RANK", "0") == "0" or rank() == 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
