"""Which files an ``--input`` names, of which format each is, and their decompressed bytes."""

from __future__ import annotations

import difflib
import glob
from pathlib import Path
from typing import BinaryIO, Protocol

from mindspeed.errors import UserError

FORMATS = ("jsonl", "json", "parquet", "arrow", "csv", "txt")
RESULT_SUFFIXES = (".bin", ".idx", ".json")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


class ByteStream(Protocol):
    """The part of a binary stream that the readers use."""

    def read(self, size: int = -1, /) -> bytes: ...


def format_of(path: Path) -> str | None:
    """The format by a file's name, one of :data:`FORMATS`; None if it is not known."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    if compressed:
        suffixes.pop()
    kind = suffixes[-1][1:] if suffixes else ""
    if kind not in FORMATS or (compressed and kind in ("parquet", "arrow")):
        return None
    return kind


def find_inputs(given: str) -> tuple[list[Path], list[Path]]:
    """List the files that ``given`` (a file, a folder or a glob pattern) names.

    Returns:
        the files to read, sorted by name, and those of a folder that are of no known format.

    Raises:
        UserError: nothing is there, or nothing of a known format.
    """
    path = Path(given).expanduser()
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [
            entry
            for entry in sorted(path.rglob("*"))
            if entry.is_file()
            and not any(part.startswith(".") for part in entry.relative_to(path).parts)
            # An earlier result in the same folder, with its note in JSON, is no input.
            and not (entry.suffix in RESULT_SUFFIXES and entry.with_suffix(".idx").is_file())
        ]
    else:
        found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
        found = [entry for entry in found if entry.is_file()]
        if not found:
            raise UserError(f"--input {given}: {_nothing_there(path)}")
    known = [entry for entry in found if format_of(entry)]
    unknown = [entry for entry in found if not format_of(entry)]
    if not known:
        names = ", ".join(entry.name for entry in unknown[:5]) or "no file at all"
        raise UserError(
            f"--input {given}: found {names}; none is of a format that can be read: "
            f"{', '.join(FORMATS)} (text formats also as .gz or .zst)."
        )
    return known, unknown


def _nothing_there(path: Path) -> str:
    """Say what is missing, and what is called nearly so."""
    if not path.parent.is_dir():
        return (
            f"no such file or folder, nor is there a folder {path.parent}. Data sets are read "
            "from this machine only: download first what lies on a hub."
        )
    names = [entry.name for entry in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    hint = f" Near to it: {', '.join(near)}." if near else ""
    return f"no such file or folder.{hint}"


class InputFile:
    """A file's decompressed bytes, with the count of those read from the disk.

    A truncated or damaged compressed file raises :class:`UserError`, it does not just end early.

    Args:
        start, stop: the bytes of an uncompressed file to give; all by default.
    """

    def __init__(self, path: Path, start: int = 0, stop: int | None = None) -> None:
        self.path = path
        self._start, self._stop = start, stop
        try:
            self._raw: BinaryIO = open(path, "rb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from error
        self._stream: ByteStream = self._raw
        compression = COMPRESSIONS.get(path.suffix.lower())
        if compression:
            import pyarrow

            self._stream = pyarrow.input_stream(self._raw, compression=compression)
        elif start:
            self._raw.seek(start)

    @property
    def position(self) -> int:
        """Bytes of the file on disk that have been read."""
        end = self._raw.tell() if not self._raw.closed else self.path.stat().st_size
        return end - self._start

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` decompressed bytes, or all."""
        if self._stop is not None:
            left = max(0, self._stop - self._raw.tell())
            size = left if size < 0 else min(size, left)
        try:
            return self._stream.read(size)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path}: cannot be read to its end ({error}): the file is damaged or its "
                "copy was cut short. Fetch it again."
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
