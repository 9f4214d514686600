"""What a run wrote, and the table that it ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.console import box
from mindspeed_llm.data.preprocess.job import Job
from mindspeed_llm.data.preprocess.pipeline import Writers
from mindspeed_llm.data.preprocess.tally import Tally
from mindspeed_llm.data.storage.indexed import bin_path
from mindspeed_llm.data.storage.manifest import Manifest
from mindspeed_llm.data.tokenizer import Tokenizer


class NothingToWrite(UserError):
    """No document, or no sample, is left of the input.

    Attributes:
        tally: what became of the records.
    """

    def __init__(self, message: str, tally: Tally) -> None:
        super().__init__(message, tally)
        self.message, self.tally = message, tally

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Summary:
    """What a run did.

    Attributes:
        prefixes: the data set of each key.
        manifests: their notes.
        tally: what became of the records.
        seconds: how long it took.
        data_path: what training takes: the data sets, or the prefix that several share.
        packed: rows that samples were packed into, and how full they are; None if not packed.
    """

    prefixes: dict[str, Path]
    manifests: dict[str, Manifest]
    tally: Tally
    seconds: float
    data_path: Sequence[str] = ()
    packed: tuple[int, float] | None = field(default=None)

    @property
    def tokens(self) -> int:
        """Tokens written, over all keys."""
        return sum(manifest.tokens for manifest in self.manifests.values())

    @property
    def documents(self) -> int:
        """Documents written, over all keys."""
        return sum(manifest.documents for manifest in self.manifests.values())

    @property
    def skipped_empty(self) -> int:
        """Documents of plain text without a token."""
        return self.tally.empty

    @property
    def skipped_bad(self) -> int:
        """Malformed records that were skipped."""
        return self.tally.bad

    def report(self) -> None:
        """Print the table."""
        any_note = next(iter(self.manifests.values()))
        lines = self._text_lines() if any_note.kind == "pretrain" else self._chat_lines()
        show([*lines, ("encoder", any_note.encoder), *self._paths(any_note)])

    def _paths(self, note: Manifest) -> list[tuple[str, str]]:
        if note.kind != "pretrain":
            return [("--data-path", path) for path in self.data_path]
        sizes = {path: bin_path(path).stat().st_size for path in self.data_path}
        return [("--data-path", f"{path}  (.bin {size:,} bytes)") for path, size in sizes.items()]

    def _rate(self, tokens: int) -> str:
        per_second = tokens / max(self.seconds, 1e-9)
        return f"{tokens:,} in {self.seconds:.1f} s, {per_second:,.0f}/s"

    def _text_lines(self) -> list[tuple[str, str]]:
        tally = self.tally
        ended = any(note.eod is not None for note in self.manifests.values())
        return [
            ("documents", f"{self.documents:,}"),
            ("tokens", self._rate(self.tokens)),
            ("skipped empty", counted(tally.empty, tally.first_empty)),
            ("skipped bad", counted(tally.bad, tally.first_bad)),
            ("end tokens", "one a document" if ended else "none"),
        ]

    def _chat_lines(self) -> list[tuple[str, str]]:
        tally, note = self.tally, next(iter(self.manifests.values()))
        lines = [("records read", f"{tally.read:,}"), ("samples kept", f"{tally.kept:,}")]
        if self.packed:
            rows, share = self.packed
            lines.append(("packed into", f"{rows:,} rows, {share:.2%} filled"))
        return [
            *lines,
            ("tokens", self._rate(note.tokens)),
            ("trained on", f"{tally.trained:,} tokens"),
            ("changed", "\n".join(tally.lines(tally.noted)) or "0"),
            ("left out", "\n".join(tally.lines(tally.dropped)) or "0"),
            ("skipped bad", counted(tally.bad, tally.first_bad)),
            ("template", note.template["name"] if note.template else ""),
        ]


def notes_of(
    job: Job, tokenizer: Tokenizer, encoder: str, tally: Tally, out: Writers, **of_kind: Any
) -> dict[str, Manifest]:
    """The note of each data set that was written; ``of_kind``: what only its kind of data has."""
    options = job.options
    # Hashes of the vocabulary and the inputs are the same for all keys.
    common = Manifest(
        tokenizer=str(tokenizer.folder),
        tokenizer_json_sha256=tokenizer.file_hash,
        vocabulary_sha256=tokenizer.vocabulary_hash(),
        vocab_size=tokenizer.vocab_size,
        dtype="",
        eod=tokenizer.eod if options.append_eod else None,
        tokens=0,
        documents=0,
        skipped_empty=tally.empty,
        skipped_bad=tally.bad,
        handler=options.handler_name or type(job.handler).__name__,
        key="",
        inputs=job.notes(),
        encoder=encoder,
        kind=job.handler.kind,
        flags=options.content_flags(),
        read=tally.read,
        dropped=dict(tally.dropped),
        **of_kind,
    )
    return {
        key: replace(
            common,
            key=key,
            dtype=writer.dtype.name,
            tokens=writer.tokens,
            documents=writer.documents,
        )
        for key, writer in out.by_key.items()
    }


def counted(count: int, first: str) -> str:
    """A count, with the place of the first."""
    return f"{count:,}" + (f" (first: {first})" if first else "")


def show(lines: Sequence[tuple[str, str]]) -> None:
    """Print a table: a name and a value a line; a value of several lines is set in."""
    width = max(len(name) for name, _ in lines)
    rows = []
    for name, value in lines:
        first, *rest = value.split("\n")
        rows.append(f"{name.ljust(width)}  {first}")
        rows += [f"{' ' * width}  {line}" for line in rest]
    box("preprocessed", rows)
