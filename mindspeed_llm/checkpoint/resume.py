"""A conversion's unfinished result: kept when the process is killed, continued by the next run.

The result grows in a folder with a temporary name and moves to its place as a whole. Beside the
files lies a journal, one JSON object a line: first the request, then which tensors of which file
are on the disk. A run with the same request, code and source files goes on from there; a run with
another one removes what it finds and says so.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.casting import Caster
from mindspeed_llm.console import say, warn
from mindspeed_llm.files import fsync_path, replace_folder

JOURNAL = ".journal"

Request = dict[str, Any]
"""What makes two conversions the same, in plain values: flags and the files that are read."""


def source_files(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Size and time of change of each file, by which a changed source is noticed."""
    found = {str(path.resolve()): path.stat() for path in sorted(paths)}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in found.items()}


@functools.cache
def code_version() -> str:
    """A fingerprint of the code that decides what is written: halves of two versions never mix."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for folder in ("checkpoint", "models"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass
class Unfinished:
    """The folder in which a result grows, and its journal.

    Attributes:
        folder: what becomes the result.
        cast: knows the tensors with NaN met so far; those of the earlier run are added to it.
        kept_bytes: bytes that an earlier run wrote and this one need not.
        whole: whether an earlier run had finished all but the move to the final place.
        on_bytes: told the bytes as they are written.
    """

    folder: Path
    cast: Caster
    journal: IO[str]
    kept_bytes: int = 0
    whole: bool = False
    on_bytes: Callable[[int], object] | None = None
    _held: dict[str, set[str]] = field(default_factory=dict)

    def held(self, path: Path) -> frozenset[str]:
        """Slots of ``path`` that an earlier run filled."""
        return frozenset(self._held.get(str(path.relative_to(self.folder)), ()))

    def wrote(self, nbytes: int) -> None:
        """Pass the progress on."""
        if self.on_bytes is not None:
            self.on_bytes(nbytes)

    def durable(self, path: Path, slots: Mapping[str, int]) -> None:
        """Note in the journal which slots, of how many bytes, are on the disk."""
        if slots:
            name, size = str(path.relative_to(self.folder)), path.stat().st_size
            # A tensor's NaN are seen before it is durable, so no name can be missing.
            nan = sorted(self.cast.not_finite)
            self._note({"file": name, "size": size, "slots": dict(slots), "nan": nan})

    def all_written(self) -> None:
        """Note that only the move to the final place is missing."""
        self._note({"whole": True})

    def begin(self, request: Request) -> None:
        """Empty the folder and start its journal."""
        for path in self.folder.iterdir():
            if path.name != JOURNAL:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.journal.truncate(0)
        self._note({"request": request})

    def take_over(self, lines: Iterable[dict[str, Any]]) -> None:
        """Go on from what the journal says, as far as the files are there."""
        for line in lines:
            self.whole = self.whole or "whole" in line
            path = self.folder / line.get("file", "")
            if "slots" not in line or not path.is_file() or path.stat().st_size != line["size"]:
                continue
            self.cast.not_finite.update(line["nan"])
            self._held.setdefault(line["file"], set()).update(line["slots"])
            self.kept_bytes += sum(line["slots"].values())

    def _note(self, line: dict[str, Any]) -> None:
        # The break before it ends what a kill may have torn. A line need not be durable: losing
        # it costs the work that it describes, nothing else.
        self.journal.write("\n" + json.dumps(line))
        self.journal.flush()


@contextmanager
def unfinished(
    save: Path, request: Request, cast: Caster, last: Sequence[str]
) -> Iterator[Unfinished]:
    """A folder that becomes ``save`` once the block ends well.

    If ``save`` exists, its other files stay and the new ones move in beside them, those named in
    ``last`` at the end: without them the folder is not yet a checkpoint.

    After an error the folder is removed; after a kill or Ctrl-C it stays for the next run.

    Raises:
        UserError: if another process is writing the same result.
    """
    place, other = _places(save)
    if other.is_dir():
        _say_removed(other, "it would have gone to another place")
        shutil.rmtree(other)
    place.mkdir(parents=True, exist_ok=True)
    with open(place / JOURNAL, "a+", encoding="utf-8") as journal:
        _lock(journal, save)
        work = _continued(Unfinished(place, cast, journal), request)
        try:
            yield work
            work.all_written()
            _publish(place, save, last)
        except Exception:
            shutil.rmtree(place, ignore_errors=True)
            raise
        except BaseException:
            say(f"\ninterrupted; the same command continues from what is in {place}")
            raise


def is_whole(save: Path) -> bool:
    """Whether a finished result for ``save`` waits to be moved into it."""
    journal = _places(save)[0] / JOURNAL
    return journal.is_file() and any("whole" in line for line in _lines(journal.read_text("utf-8")))


def left_over(save: Path) -> list[Path]:
    """Unfinished results of killed runs that were to become ``save``."""
    return [place for place in _places(save) if (place / JOURNAL).is_file()]


def left_over_bytes(save: Path) -> int:
    """What these take on the disk: a new run goes on from them or removes them."""
    return sum(allocated_bytes(place) for place in left_over(save))


def allocated_bytes(folder: Path) -> int:
    """What the files below ``folder`` take on the disk (planned files have holes)."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def _places(save: Path) -> tuple[Path, Path]:
    """Where an unfinished result lies: in ``save`` if that exists, else beside it; and the other.

    A folder that exists may be a disk of its own, or the only place that we may write to.
    """
    inside, beside = save / ".partial", save.with_name(f".{save.name}.partial")
    return (inside, beside) if save.exists() else (beside, inside)


def _lock(journal: IO[str], save: Path) -> None:
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            f"--save-dir {save}: another conversion is writing it at this moment; wait for it or "
            "choose another folder"
        ) from None


def _lines(text: str) -> list[dict[str, Any]]:
    """The journal's whole lines."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _continued(work: Unfinished, request: Request) -> Unfinished:
    """Take over what the journal says if it is of the same request; else begin."""
    work.journal.seek(0)
    first, *lines = _lines(work.journal.read()) or [{}]
    difference = _difference(first.get("request"), request)
    if difference is None:
        work.take_over(lines)
        say(f"continuing an interrupted conversion: {work.kept_bytes:,} bytes are written already")
        return work
    if first:
        _say_removed(work.folder, difference)
    work.begin(request)
    return work


def _say_removed(place: Path, why: str) -> None:
    size = allocated_bytes(place) / 1e9
    warn(f"an unfinished conversion in {place} ({size:.2f} GB) was removed: {why}")


def _difference(old: Request | None, new: Request) -> str | None:
    """In what the two requests differ; None if they are the same."""
    if old is None:
        return "it has no record of its request"
    for name, value in new["flags"].items():
        before = old["flags"].get(name)
        if before != value:
            return f"its --{name.replace('_', '-')} was {before}, now it is {value}"
    if old["files"] != new["files"]:
        changed = [n for n in new["files"] if old["files"].get(n) != new["files"][n]]
        return f"the files to convert have changed ({', '.join(changed[:2]) or 'some are gone'})"
    return None if old == new else "another version of this program wrote it"


def _publish(place: Path, save: Path, last: Sequence[str]) -> None:
    """Make everything in ``place`` durable and put it where it belongs."""
    for path in place.rglob("*"):
        fsync_path(path)
    fsync_path(place)
    if not save.exists():
        # A kill between these two lines costs the whole work; there is nothing in between.
        (place / JOURNAL).unlink()
        os.rename(place, save)
        fsync_path(save.parent)
        return
    order = {name: position for position, name in enumerate(last)}
    for path in sorted(place.iterdir(), key=lambda path: order.get(path.name, -1)):
        if path.is_dir():
            replace_folder(path, save / path.name)
        elif path.name != JOURNAL:
            os.replace(path, save / path.name)
    fsync_path(save)
    shutil.rmtree(place)
