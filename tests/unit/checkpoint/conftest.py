"""Tiny models made once, and a folder on a RAM disk where there is one (fsync costs nothing)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.families import TinyModels, write_tiny_hf
from tests.unit.checkpoint import adapters, tiny

_RAM = Path("/dev/shm")


@pytest.fixture(scope="session")
def _ram() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=_RAM if _RAM.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def scratch(_ram: Path) -> Iterator[Path]:
    """An empty folder."""
    folder = Path(tempfile.mkdtemp(dir=_ram))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def tiny_hf(_ram: Path) -> Callable[..., Path]:
    """``tiny_hf(family, tied)``: a Hugging Face folder, made once; do not change it."""

    def get(family: str, tied: bool = False) -> Path:
        folder = _ram / f"{family}-{'tied' if tied else 'untied'}"
        if not folder.exists():
            tiny.make(folder, family, tie_word_embeddings=tied)
        return folder

    return get


@pytest.fixture(scope="session")
def family_hf(_ram: Path) -> Callable[[str], Path]:
    """``family_hf(name)``: a model of the families' table, made once; do not change it."""
    return TinyModels(_ram / "families").__getitem__


@pytest.fixture
def own_hf(tiny_hf: Callable[..., Path], scratch: Path) -> Callable[..., Path]:
    """``own_hf(family, tied)``: a copy that the test may change."""

    def get(family: str = "llama", tied: bool = False) -> Path:
        return Path(shutil.copytree(tiny_hf(family, tied), scratch / "own"))

    return get


@pytest.fixture(scope="session")
def tiny_lora(_ram: Path) -> Callable[[str], tuple[Path, Path]]:
    """``tiny_lora(family)``: (base model, adapter of ``peft``), made once; do not change them."""

    def get(family: str) -> tuple[Path, Path]:
        base, adapter = _ram / f"{family}-base", _ram / f"{family}-adapter"
        if not adapter.exists():
            write_tiny_hf(base, family)
            adapters.make(base, adapter, adapters.TARGETS.get(family))
        return base, adapter

    return get
