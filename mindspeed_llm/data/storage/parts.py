"""Instruction and preference data on disk: several indexed data sets that go row by row.

``{prefix}_packed_{key}_document.{bin,idx}`` for each key (the names say "packed" even where
nothing is packed). One document a row, int32. ``labels`` lie on the tokens themselves, -100 where
none is trained; ``attention_mask`` is 1, or in a packed row the number of the sample, 0 for
padding.
"""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.data.storage.indexed import bin_path, check_indexed, idx_path

INSTRUCTION = ("input_ids", "labels", "attention_mask")
PAIRWISE = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
IGNORE = -100
_MIDDLE, _END = "_packed_", "_document"


def part_prefix(prefix: str | Path, key: str) -> str:
    """The prefix of one part."""
    return f"{prefix}{_MIDDLE}{key}{_END}"


def check_parts(prefix: str, keys: tuple[str, ...], flag: str) -> None:
    """Check that every part of ``prefix`` is there and whole.

    Raises:
        UserError: says what is missing, and what lies near its name.
    """
    missing = [key for key in keys if not idx_path(part_prefix(prefix, key)).is_file()]
    if len(missing) == len(keys):
        raise UserError(f"{flag} {prefix}: no such data set. {_suggestion(Path(prefix), keys)}")
    if missing:
        raise UserError(
            f"{flag} {prefix}: {part_prefix(Path(prefix).name, missing[0])}.idx is missing beside "
            f"{part_prefix(Path(prefix).name, next(k for k in keys if k not in missing))}.idx; "
            "preprocess the data again."
        )
    for key in keys:
        check_indexed(part_prefix(prefix, key))


def _suggestion(prefix: Path, keys: tuple[str, ...]) -> str:
    if not prefix.parent.is_dir():
        return f"There is no folder {prefix.parent}."
    files = sorted(path.stem for path in prefix.parent.glob("*.idx"))
    ending = part_prefix("", keys[0])
    names = [name.removesuffix(ending) for name in files if name.endswith(ending)]
    whole = prefix.name.partition(_MIDDLE)[0]
    if whole != prefix.name and whole in names:
        return f"Give the part of the name before {_MIDDLE}: {prefix.parent / whole}"
    if names:
        near = difflib.get_close_matches(prefix.name, names, n=3, cutoff=0.5)
        listed = ", ".join(str(prefix.parent / name) for name in near or names[:10])
        return f"Did you mean {listed}?" if near else f"Of this kind there are: {listed}."
    kind = "preference" if keys is PAIRWISE else "instruction"
    if files:
        return (
            f"The folder {prefix.parent} holds no {kind} data (files NAME{ending}.idx), but: "
            f"{', '.join(files[:10])}."
        )
    return f"The folder {prefix.parent} holds no data set (.idx file): preprocess the data first."


class Part:
    """The rows of one key, mapped into memory.

    Args:
        prefix: of the indexed data set.
        signed: refuse types that cannot hold -100.
    """

    def __init__(self, prefix: str, signed: bool = True) -> None:
        header = check_indexed(prefix)
        if signed and header.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise UserError(
                f"{prefix} holds {header.dtype.name}; instruction data is int32, because "
                f"{IGNORE} marks tokens that are not trained. Preprocess the data again."
            )
        if header.marks != header.sequences + 1:
            raise UserError(
                f"{prefix}: {header.sequences} sequences in {header.marks - 1} documents; a row is "
                "a document of one sequence. Preprocess the data again."
            )
        self._data = np.memmap(bin_path(prefix), header.dtype, mode="r")
        self.lengths = header.lengths
        offsets = header.map(np.int64, header.sequences, header.pointers_at)
        self._starts = offsets // header.dtype.itemsize

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> np.ndarray:
        start = self._starts[row]
        return np.asarray(self._data[start : start + self.lengths[row]])

    def span(self, first: int, end: int) -> np.ndarray:
        """The rows from ``first`` up to ``end`` one after the other, as they lie in the file."""
        last = end - 1
        return np.asarray(self._data[self._starts[first] : self._starts[last] + self.lengths[last]])


class Parts:
    """The parts of one data set, row by row.

    Args:
        prefix: as ``--data-path`` names it.
        keys: :data:`INSTRUCTION` or :data:`PAIRWISE`.
        flag: where the prefix was given, for errors.

    Raises:
        UserError: a part is missing or damaged, or they do not belong together.
    """

    def __init__(self, prefix: str, keys: tuple[str, ...], flag: str = "--data-path") -> None:
        check_parts(prefix, keys, flag)
        self.prefix, self.keys = prefix, keys
        self.parts = {key: Part(part_prefix(prefix, key)) for key in keys}
        for key, part in self.parts.items():
            # The labels of an answer are as long as its tokens; another answer is not.
            answer = key.removesuffix("labels").removesuffix("attention_mask")
            tokens = answer if answer.endswith("input_ids") else answer + "input_ids"
            if not np.array_equal(part.lengths, self.parts[tokens].lengths):
                raise UserError(
                    f"{prefix}: the rows of {key} are not as long as those of {tokens}: the files "
                    "are of different runs. Preprocess the data again."
                )
        if len({len(part) for part in self.parts.values()}) > 1:
            raise UserError(
                f"{prefix}: not as many rejected answers as chosen ones: the files are of "
                "different runs. Preprocess the data again."
            )

    def __len__(self) -> int:
        return len(self.parts[self.keys[0]])

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        """The row of every key, int32 or int64 ``[length]`` each."""
        return {key: part[row] for key, part in self.parts.items()}

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row ``[rows]``; of the longer answer where rows are pairs."""
        found = [part.lengths for key, part in self.parts.items() if key.endswith("input_ids")]
        return np.maximum.reduce(found)
