"""Fixtures of a module of tests on ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import TinyModels
from tests.parallel.layouts import write_tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of the module's own."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def data(folder) -> Path:
    """The prefix for ``--data-path`` of a few sentences over and over."""
    return write_tokens(folder / "data" / "tiny_text_document")


@pytest.fixture(scope="module")
def models(folder) -> TinyModels:
    """``models[name]``: a tiny model of the table."""
    return TinyModels(folder)
