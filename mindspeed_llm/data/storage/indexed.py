"""Megatron's indexed data sets (``PREFIX.bin`` + ``PREFIX.idx``): write, check.

Format (megatron.core.datasets.indexed_dataset): the .bin file is all tokens; the .idx file is the
magic ``MMIDIDX``, version 1, a code for the token type, the counts of sequences and of document
marks, then each sequence's length (int32), its byte offset (int64), and the index of the first
sequence of each document with one closing mark (int64).
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.files import fsync_path

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
# Megatron's codes; only these two hold token ids.
TYPE_CODES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
TYPES_BY_CODE = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32,
    5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16,
}  # fmt: skip
# Megatron takes 16 bits below this many ids, not below 65536.
UINT16_LIMIT = 65500
MARKS_AT_ONCE = 1 << 16


def token_dtype(vocab_size: int) -> np.dtype:
    """The type of the ids of a vocabulary with ``vocab_size`` = largest id + 1."""
    return np.dtype(np.uint16 if vocab_size < UINT16_LIMIT else np.int32)


def bin_path(prefix: Path | str) -> Path:
    """The data file of a prefix."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: Path | str) -> Path:
    """The index file of a prefix."""
    return Path(f"{prefix}.idx")


class IndexedWriter:
    """Writes one indexed data set; it appears under its final names when it is complete.

    The index costs 4 bytes of memory a sequence while data is added, and no more at the end.
    ``PREFIX.idx`` is written last: without it there is no data set. Left-overs of a killed run
    have the same temporary names and are overwritten.
    """

    def __init__(self, prefix: Path | str, dtype: np.dtype) -> None:
        self.prefix = Path(prefix)
        self.dtype = np.dtype(dtype)
        self.tokens = 0
        self.sequences = 0
        self.documents = 0
        self._lengths: list[np.ndarray] = []
        self._document_lengths: list[np.ndarray] = []
        self._partial = {
            end: self.prefix.with_name(f".{self.prefix.name}{end}.partial")
            for end in (".bin", ".idx")
        }
        self._make_folder()
        self._data = open(self._partial[".bin"], "ab")  # noqa: SIM115 (closed by publish, abort)
        self._lock()
        self._data.truncate(0)

    def _make_folder(self) -> None:
        folder = self.prefix.parent
        self._new_folders = [f for f in (folder, *folder.parents) if not f.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"--output-prefix {self.prefix}: the folder cannot be made ({error.strerror})."
            ) from error
        if not os.access(self.prefix.parent, os.W_OK):
            raise UserError(f"--output-prefix {self.prefix}: no permission to write in the folder.")

    def _lock(self) -> None:
        """Keep a second run off the same prefix (where the file system has locks)."""
        import fcntl

        try:
            fcntl.flock(self._data, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._data.close()
            raise UserError(
                f"{self.prefix}: another run is writing this data set. Wait for it, or choose "
                "another --output-prefix."
            ) from error
        except OSError:
            pass

    def add(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        document_lengths: np.ndarray | None = None,
    ) -> None:
        """Add sequences.

        Args:
            ids: [total] integers, one sequence after the other.
            lengths: [sequences] tokens in each; sums to ``total``.
            document_lengths: [documents] sequences in each; None if each sequence is a document.

        Raises:
            UserError: the disk is full.
            ValueError: an id or a length does not fit its type, or the lengths do not sum up.
        """
        if int(lengths.sum()) != ids.size:
            raise ValueError(f"lengths sum to {int(lengths.sum())}, there are {ids.size} ids")
        if ids.size:
            low, high = int(ids.min()), int(ids.max())
            limits = np.iinfo(self.dtype)
            if low < limits.min or high > limits.max:
                raise ValueError(f"ids from {low} to {high} do not fit {self.dtype.name}")
        if lengths.size and int(lengths.max()) > np.iinfo(np.int32).max:
            raise ValueError("a sequence of more than 2**31 - 1 tokens does not fit the format")
        with self._disk_errors():
            self._data.write(ids.astype(self.dtype, copy=False).data)
        self._lengths.append(lengths.astype(np.int32))
        if document_lengths is not None or self._document_lengths:
            self._add_marks(lengths.size, document_lengths)
        self.tokens += ids.size
        self.documents += lengths.size if document_lengths is None else document_lengths.size
        self.sequences += lengths.size

    def _add_marks(self, sequences: int, document_lengths: np.ndarray | None) -> None:
        """Note documents that are not one sequence each (which needs no note)."""
        if not self._document_lengths and self.documents:
            self._document_lengths.append(np.ones(self.documents, dtype=np.int32))
        if document_lengths is None:
            document_lengths = np.ones(sequences, dtype=np.int32)
        if int(document_lengths.sum()) != sequences:
            raise ValueError("the documents' sequences do not sum up to the sequences")
        self._document_lengths.append(document_lengths.astype(np.int32))

    def prepare(self) -> None:
        """Complete both files under their temporary names.

        Raises:
            UserError: there is no token, or the disk is full.
        """
        if not self.tokens:
            raise UserError(f"{self.prefix}: there is no token to write.")
        with self._disk_errors():
            self._data.flush()
            os.fsync(self._data.fileno())
            with open(self._partial[".idx"], "wb") as index:
                for piece in self._index_pieces():
                    index.write(piece)
                index.flush()
                os.fsync(index.fileno())

    def publish(self) -> None:
        """Give both files their final names, replacing an earlier data set."""
        # In this order a stop between any two steps leaves no index, hence no data set.
        idx_path(self.prefix).unlink(missing_ok=True)
        os.replace(self._partial[".bin"], bin_path(self.prefix))
        os.replace(self._partial[".idx"], idx_path(self.prefix))
        fsync_path(self.prefix.parent)
        self._data.close()

    def commit(self) -> None:
        """Complete the data set and put it in place."""
        self.prepare()
        self.publish()

    def _index_pieces(self) -> Iterator[bytes]:
        """The index file, in pieces of a few megabytes."""
        yield HEADER.pack(MAGIC, 1, TYPE_CODES[self.dtype], self.sequences, self.documents + 1)
        yield from (lengths.tobytes() for lengths in self._lengths)
        end = 0
        for lengths in self._lengths:
            ends = end + np.cumsum(lengths, dtype=np.int64) * self.dtype.itemsize
            starts = np.empty_like(ends)
            starts[:1] = end
            starts[1:] = ends[:-1]
            yield starts.tobytes()
            end = int(ends[-1]) if ends.size else end
        if not self._document_lengths:
            for start in range(0, self.documents + 1, MARKS_AT_ONCE):
                stop = min(start + MARKS_AT_ONCE, self.documents + 1)
                yield np.arange(start, stop, dtype=np.int64).tobytes()
            return
        yield np.zeros(1, dtype=np.int64).tobytes()
        count = 0
        for marks in self._document_lengths:
            ends = count + np.cumsum(marks, dtype=np.int64)
            yield ends.tobytes()
            count = int(ends[-1]) if ends.size else count

    def abort(self) -> None:
        """Remove what was written; an earlier data set of the same name stays as it was."""
        for path in self._partial.values():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._data.close()
        with contextlib.suppress(OSError):  # not empty: someone else's
            for folder in self._new_folders:
                folder.rmdir()

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise UserError(
                f"{self.prefix}: the disk is full ({error.strerror}) after {self.tokens} tokens. "
                "Make room or choose another --output-prefix; nothing was left behind."
            ) from error

    def __enter__(self) -> IndexedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or not self._data.closed:
            self.abort()


class IndexHeader:
    """The counts and places in an index file, checked against the file's own size.

    Raises:
        UserError: a file is missing, or it is not a complete index.
    """

    def __init__(self, prefix: Path | str) -> None:
        self.prefix = Path(prefix)
        index = idx_path(prefix)
        for path in (index, bin_path(prefix)):
            if not path.is_file():
                raise UserError(f"{path}: no such file; a data set is a .bin and an .idx file.")
        size = index.stat().st_size
        with open(index, "rb") as file:
            head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            raise UserError(f"{index}: not an index of Megatron's format (or an empty file).")
        _, version, code, self.sequences, self.marks = HEADER.unpack(head)
        if version != 1 or code not in TYPES_BY_CODE:
            raise UserError(f"{index}: version {version}, token type {code}: not known here.")
        self.dtype = np.dtype(TYPES_BY_CODE[code])
        self.lengths_at = HEADER.size
        self.pointers_at = self.lengths_at + 4 * self.sequences
        self.marks_at = self.pointers_at + 8 * self.sequences
        # A multimodal index has one more byte a sequence.
        complete = self.marks_at + 8 * self.marks
        if size not in (complete, complete + self.sequences):
            raise UserError(
                f"{index}: {size} bytes, but its header asks for {complete}: cut short or damaged. "
                "Preprocess the data again."
            )

    def map(self, kind: type, count: int, offset: int) -> np.ndarray:
        """Map ``count`` numbers of the index file."""
        if count == 0:
            return np.empty(0, dtype=kind)
        return np.memmap(idx_path(self.prefix), dtype=kind, mode="r", offset=offset, shape=(count,))

    @property
    def lengths(self) -> np.ndarray:
        """[sequences] int32."""
        return self.map(np.int32, self.sequences, self.lengths_at)

    @property
    def document_marks(self) -> np.ndarray:
        """[documents + 1] int64: the first sequence of each document, then the end."""
        return self.map(np.int64, self.marks, self.marks_at)


def check_indexed(prefix: Path | str) -> IndexHeader:
    """Check that the two files of a data set belong together.

    Raises:
        UserError: one is missing, damaged, or the data is not as long as the index says.
    """
    header = IndexHeader(prefix)
    size = bin_path(prefix).stat().st_size
    needed = 0
    if header.sequences:
        last = header.map(np.int64, 1, header.marks_at - 8)[0]
        length = header.map(np.int32, 1, header.pointers_at - 4)[0]
        needed = int(last) + int(length) * header.dtype.itemsize
    if not needed:
        raise UserError(f"{bin_path(prefix)}: the data set holds no token.")
    if size != needed:
        raise UserError(
            f"{bin_path(prefix)} has {size} bytes, {idx_path(prefix)} asks for {needed}: the two "
            "files do not belong together, or one was cut short. Copy both again, or preprocess "
            "again."
        )
    return header
