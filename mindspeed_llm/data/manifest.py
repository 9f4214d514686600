"""The note beside a data set (``PREFIX.json``) that says what it was made of and with what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.data.tokenizer import Tokenizer
from mindspeed_llm.files import write_text_atomically

VERSION = 1


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
        handler, key: what made documents of records.
        inputs: the files read.
        encoder: the engine used.
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
    inputs: list[str]
    encoder: str
    version: int = VERSION

    def write(self, prefix: Path) -> None:
        """Write it beside the data set ``prefix``."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        write_text_atomically(manifest_path(prefix), text + "\n")


def manifest_path(prefix: Path | str) -> Path:
    """The note's file."""
    return Path(f"{prefix}.json")


def read_manifest(prefix: Path | str) -> Manifest | None:
    """Read the note; None if there is none (data of another tool) or it is of another version.

    Raises:
        UserError: it cannot be parsed.
    """
    path = manifest_path(prefix)
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(**stored) if stored.get("version") == VERSION else None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not a note of this tool ({error}). Delete it to use the data without checks."
        ) from error


def merge_manifests(prefixes: Sequence[Path]) -> Manifest | None:
    """The note of the data sets ``prefixes`` put together; None unless each of them has one.

    Raises:
        UserError: they were made with different tokenizers.
    """
    found = [(prefix, read_manifest(prefix)) for prefix in prefixes]
    notes = [note for _, note in found if note]
    if len(notes) < len(found) or not notes:
        return None
    first = notes[0]
    for prefix, note in found:
        if note and note.vocabulary_sha256 != first.vocabulary_sha256:
            raise UserError(
                f"{prefix} was made with another tokenizer ({note.tokenizer}) than "
                f"{prefixes[0]} ({first.tokenizer}); they cannot be merged."
            )
    return replace(
        first,
        eod=first.eod if all(note.eod == first.eod for note in notes) else None,
        tokens=sum(note.tokens for note in notes),
        documents=sum(note.documents for note in notes),
        skipped_empty=sum(note.skipped_empty for note in notes),
        skipped_bad=sum(note.skipped_bad for note in notes),
        inputs=[name for note in notes for name in note.inputs],
    )


def check_tokenizer(prefix: Path | str, tokenizer: Tokenizer) -> None:
    """Check that data and training mean the same by each id.

    A tokenizer that has further tokens after those of the data passes.

    Raises:
        UserError: they do not.
    """
    manifest = read_manifest(prefix)
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
