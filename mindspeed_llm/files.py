"""Files that appear whole or not at all: written beside the target, fsynced, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def fsync_path(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(target: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside ``target`` that replaces it once the block ends well.

    On an exception the temporary file is removed and the target stays as it was. A left-over of
    a killed run has the same name and is overwritten.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.partial")
    try:
        yield temporary
        fsync_path(temporary)
        os.replace(temporary, target)
        fsync_path(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text_atomically(target: Path | str, text: str) -> None:
    """Replace ``target`` by ``text`` in one step (a pointer file, a manifest)."""
    with atomic_path(target) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(target: Path | str) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``target`` once the block ends well.

    An existing ``target`` is replaced as a whole; a killed run leaves the old one or the new one.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        replace_folder(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_folder(source: Path, target: Path) -> None:
    """Fsync everything under ``source`` and rename it to ``target``, which may exist."""
    for path in source.rglob("*"):
        fsync_path(path)
    fsync_path(source)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(source, target)
    fsync_path(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def strict_json(text: str | bytes) -> Any:
    """``json.loads``, except that a key given twice in one object is an error, not the last wins.

    Raises:
        ValueError: not JSON, or a key given twice.
    """
    return json.loads(text, object_pairs_hook=_without_duplicates)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(
            f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice"
        )
    return found
