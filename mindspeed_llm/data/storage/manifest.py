"""The note beside a data set (``PREFIX.json``) that says what it was made of and with what."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from mindspeed.errors import UserError
from mindspeed_llm.data.tokenizer import Tokenizer
from mindspeed_llm.files import write_text_atomically

VERSION = 2
# Bytes at either end of an input file that its hash covers: all of a small file, a second's
# reading for thousands of large ones.
HASHED_END = 1 << 20

Kind = Literal["pretrain", "instruction", "pairwise", "prompt"]
# How training is told which kind of data it gets.
FLAG_OF_KIND = {
    "pretrain": "no --is-instruction-dataset",
    "instruction": "--is-instruction-dataset",
    "pairwise": "--is-pairwise-dataset",
    "prompt": "reinforcement learning",
}


@dataclass(frozen=True)
class InputNote:
    """A file that was read.

    Attributes:
        path: as it was named.
        size: bytes.
        modified: seconds since 1970, as the file system gives it.
        sha256: over the size and the first and last MiB, so the whole of a file up to 2 MiB.
    """

    path: str
    size: int
    modified: float
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a data set was made of.

    Attributes:
        tokenizer: the folder of the tokenizer.
        tokenizer_json_sha256: of its tokenizer.json, None if it has none.
        vocabulary_sha256: :meth:`Tokenizer.vocabulary_hash` over ``vocab_size`` ids.
        vocab_size: largest id + 1.
        dtype: of the ids in the .bin file.
        eod: the token that ends each document; None if none was added.
        tokens, documents: their counts.
        skipped_empty, skipped_bad: records that are not in the data set.
        handler, key: what made documents of records, and which part of them this is.
        inputs: the files read.
        encoder: the engine used.
        kind: what the data is for.
        template: of chat data: name, sha256 of what it writes for a few conversations.
        flags: the flags that matter for the content, as given.
        read: records read.
        cut: samples that were cut to the greatest length.
        dropped: records and samples left out, by reason.
        pad: the token that fills packed rows; None if nothing was packed.
        seq_length: the length of packed rows, or the greatest of unpacked ones; None for any.
    """

    tokenizer: str
    tokenizer_json_sha256: str | None
    vocabulary_sha256: str
    vocab_size: int
    dtype: str
    eod: int | None
    tokens: int
    documents: int
    skipped_empty: int
    skipped_bad: int
    handler: str
    key: str
    inputs: tuple[InputNote, ...]
    encoder: str
    kind: Kind = "pretrain"
    template: dict[str, str] | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    read: int = 0
    cut: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    pad: int | None = None
    seq_length: int | None = None
    version: int = VERSION

    def write(self, prefix: Path) -> None:
        """Write it beside the data set ``prefix``."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_text_atomically(manifest_path(prefix), text + "\n")


def note_of(path: Path) -> InputNote:
    """What tells an input file from another of the same name."""
    stat = path.stat()
    digest = hashlib.sha256(str(stat.st_size).encode())
    with open(path, "rb") as file:
        digest.update(file.read(HASHED_END))
        file.seek(max(HASHED_END, stat.st_size - HASHED_END))
        digest.update(file.read(HASHED_END))
    return InputNote(str(path), stat.st_size, stat.st_mtime, digest.hexdigest())


def manifest_path(prefix: Path | str) -> Path:
    """The note's file."""
    return Path(f"{prefix}.json")


def read_manifest(prefix: Path | str) -> Manifest | None:
    """Read the note; None if there is none (data of another tool) or it is of a later version.

    Raises:
        UserError: it cannot be parsed.
    """
    path = manifest_path(prefix)
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored.get("version") == 1:
            # It had the inputs' names alone, and knew one kind of data.
            notes = [asdict(InputNote(name, 0, 0.0, "")) for name in stored["inputs"]]
            stored = {**stored, "inputs": notes, "version": VERSION}
        if stored.get("version") != VERSION:
            return None
        inputs = tuple(InputNote(**note) for note in stored.pop("inputs"))
        return Manifest(inputs=inputs, **stored)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(
            f"{path}: not a note of this tool ({error}). Delete it to use the data without checks."
        ) from error


def read_note_of_data(prefix: Path | str) -> Manifest | None:
    """The note of what ``--data-path prefix`` means: a data set, or the parts of a packed one."""
    found = read_manifest(prefix)
    if found is None:
        for name in sorted(glob.glob(f"{glob.escape(str(prefix))}_packed_*_document.json")):
            found = found or read_manifest(name.removesuffix(".json"))
    return found


def check_handler(prefix: Path | str, wanted: Kind, prompt_type: str | None = None) -> None:
    """Check that data was prepared for the kind of training it is given to.

    Args:
        prefix: as ``--data-path`` names it: ``{name}_{key}_document`` of pretraining data, the
            bare ``{name}`` before ``_packed_{key}_document`` of the other kinds.
        wanted: what the training takes: ``"pretrain"`` (a GPTDataset), ``"instruction"``
            (``input_ids``, ``labels``, ``attention_mask``) or ``"pairwise"`` (the ``chosen_*`` and
            ``rejected_*`` parts).
        prompt_type: the run's ``--prompt-type``; None if it names none.

    Data without a note (of another tool) passes. Call it before the data is opened: its message
    says more than a missing part would.

    Raises:
        UserError: data of another kind, or written with another template.
    """
    note = read_note_of_data(prefix)
    if note is None:
        return
    if note.kind != wanted:
        raise UserError(
            f"{prefix} was made by {note.handler} for {note.kind} training "
            f"({FLAG_OF_KIND[note.kind]}); this run wants {wanted} data "
            f"({FLAG_OF_KIND[wanted]}). Give the data or the flags that go together."
        )
    if prompt_type and note.template and note.template["name"] != prompt_type:
        raise UserError(
            f"{prefix} was written with --prompt-type {note.template['name']}, this run says "
            f"--prompt-type {prompt_type}. Use the same, or preprocess the text again."
        )


# Fields in which data sets that are put together may differ.
MAY_DIFFER = {
    "tokenizer", "tokenizer_json_sha256", "eod", "tokens", "documents", "skipped_empty",
    "skipped_bad", "inputs", "encoder", "flags", "read", "cut", "dropped",
}  # fmt: skip


def merge_manifests(prefixes: Sequence[Path]) -> Manifest | None:
    """The note of the data sets ``prefixes`` put together; None unless each of them has one.

    Raises:
        UserError: they were made with different tokenizers, handlers or templates.
    """
    found = [(prefix, read_manifest(prefix)) for prefix in prefixes]
    notes = [note for _, note in found if note]
    if len(notes) < len(found) or not notes:
        return None
    first = notes[0]
    for prefix, note in found:
        assert note is not None
        if note.vocabulary_sha256 != first.vocabulary_sha256:
            raise UserError(
                f"{prefix} was made with another tokenizer ({note.tokenizer}) than "
                f"{prefixes[0]} ({first.tokenizer}); they cannot be merged."
            )
        for one in fields(Manifest):
            mine, theirs = getattr(note, one.name), getattr(first, one.name)
            if one.name not in MAY_DIFFER and mine != theirs:
                raise UserError(
                    f"{prefix} and {prefixes[0]} cannot be merged: {one.name} is {mine} there, "
                    f"{theirs} here."
                )
    return replace(
        first,
        eod=first.eod if all(note.eod == first.eod for note in notes) else None,
        tokens=sum(note.tokens for note in notes),
        documents=sum(note.documents for note in notes),
        skipped_empty=sum(note.skipped_empty for note in notes),
        skipped_bad=sum(note.skipped_bad for note in notes),
        inputs=tuple(dict.fromkeys(one for note in notes for one in note.inputs)),
        flags={
            name: value
            for name, value in first.flags.items()
            if all(note.flags.get(name) == value for note in notes)
        },
        read=sum(note.read for note in notes),
        cut=sum(note.cut for note in notes),
        dropped=add_counts([note.dropped for note in notes]),
    )


def add_counts(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Sum counts by name, in the order in which names appear."""
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: sum(one.get(name, 0) for one in counts) for name in names}


def check_tokenizer(prefix: Path | str, tokenizer: Tokenizer) -> None:
    """Check that data and training mean the same by each id.

    A tokenizer that has further tokens after those of the data passes.

    Raises:
        UserError: they do not.
    """
    manifest = read_note_of_data(prefix)
    if manifest is None:
        return
    if tokenizer.vocab_size >= manifest.vocab_size and (
        tokenizer.vocabulary_hash(manifest.vocab_size) == manifest.vocabulary_sha256
    ):
        return
    raise UserError(
        f"{prefix} was made with another tokenizer: {manifest.tokenizer} ({manifest.vocab_size} "
        f"ids); this run uses {tokenizer.folder} ({tokenizer.vocab_size} ids), in which the same "
        "ids are other tokens. Use the data's tokenizer, or preprocess the text again."
    )
