"""One pass over plain text: documents of pretraining, a data set a key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.handlers import TextHandler
from mindspeed_llm.data.indexed import IndexedWriter, token_dtype
from mindspeed_llm.data.job import Job
from mindspeed_llm.data.manifest import Manifest
from mindspeed_llm.data.outcome import Summary, bad_line, show, size_of
from mindspeed_llm.data.pipeline import Meter, Writers, in_threads
from mindspeed_llm.data.plain_text import PlainText
from mindspeed_llm.data.readers import BadRecords, Batch
from mindspeed_llm.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextRun:
    """One pass over the input with one engine."""

    job: Job
    tokenizer: Tokenizer
    engine: Engine

    def run(self, batches: Iterator[Batch], bad: BadRecords) -> Summary:
        """Encode and write ``batches``."""
        options, handler = self.job.options, self.job.handler
        assert isinstance(handler, TextHandler)
        dtype = token_dtype(self.tokenizer.vocab_size)
        reason = f" ({self.engine.why})" if self.engine.why else ""
        say(
            f"> encoder: {self.engine.name}{reason}; "
            f"vocabulary of {self.tokenizer.vocab_size} ids, stored as {dtype.name}"
        )
        plain = PlainText(
            self.engine,
            self.tokenizer.eod if options.append_eod else None,
            self.engine.added_per_text,
        )

        def encode(batch: Batch) -> dict[str, Encoded]:
            return plain.encode(handler.texts(batch, bad))

        prefixes = {key: Path(f"{options.output_prefix}_{key}_document") for key in handler.keys}
        started = time.perf_counter()
        read = 0
        with Writers(prefixes, dtype) as out:
            with Meter(self.job.size, options.log_interval) as meter:
                for batch, encoded in in_threads(batches, encode):
                    out.add(encoded)
                    meter.update(batch, sum(one.ids.size for one in encoded.values()))
                    read += len(batch.positions)
            self._check(out, plain, bad)
            manifests = {
                key: self._manifest(key, writer, plain, bad, read)
                for key, writer in out.by_key.items()
            }
            out.commit(manifests)
        seconds = time.perf_counter() - started
        paths = [str(path) for path in prefixes.values()]
        summary = Summary(
            prefixes, manifests, plain.skipped.empty, bad.count, seconds, data_path=paths
        )
        self._report(summary, plain, bad)
        return summary

    def _check(self, out: Writers, plain: PlainText, bad: BadRecords) -> None:
        for key, writer in out.by_key.items():
            if not writer.tokens:
                raise UserError(
                    f'--input {self.job.options.input}: no token under the key "{key}": '
                    f"{plain.skipped.empty} empty documents, {bad.count} bad records"
                    f"{' (first: ' + bad.first + ')' if bad.first else ''}. "
                    "Nothing was written."
                )

    def _manifest(
        self, key: str, writer: IndexedWriter, plain: PlainText, bad: BadRecords, read: int
    ) -> Manifest:
        return Manifest(
            tokenizer=str(self.tokenizer.folder),
            tokenizer_json_sha256=self.tokenizer.file_hash,
            vocabulary_sha256=self.tokenizer.vocabulary_hash(),
            vocab_size=self.tokenizer.vocab_size,
            dtype=writer.dtype.name,
            eod=plain.eod,
            tokens=writer.tokens,
            documents=writer.documents,
            skipped_empty=plain.skipped.empty,
            skipped_bad=bad.count,
            handler=type(self.job.handler).__name__,
            key=key,
            inputs=self.job.notes(),
            encoder=self.engine.name,
            flags=self.job.options.content_flags(),
            read=read,
        )

    def _report(self, summary: Summary, plain: PlainText, bad: BadRecords) -> None:
        rate = summary.tokens / max(summary.seconds, 1e-9)
        empty = f" (first: {plain.skipped.first})" if plain.skipped.first else ""
        paths = [f"{path}  (.bin {size_of(path):,} bytes)" for path in summary.prefixes.values()]
        show(
            [
                ("documents", f"{summary.documents:,}"),
                ("tokens", f"{summary.tokens:,} in {summary.seconds:.1f} s, {rate:,.0f}/s"),
                ("skipped empty", f"{summary.skipped_empty:,}{empty}"),
                bad_line(bad),
                ("end tokens", "one a document" if plain.eod is not None else "none"),
                ("encoder", self.engine.name),
                *(("--data-path", path) for path in paths),
            ]
        )
