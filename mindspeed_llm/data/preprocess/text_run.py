"""One pass over plain text: documents of pretraining, a data set a key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindspeed_llm.console import say
from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.handlers import TextHandler
from mindspeed_llm.data.preprocess.job import Job
from mindspeed_llm.data.preprocess.outcome import NothingToWrite, Summary, notes_of
from mindspeed_llm.data.preprocess.pipeline import Meter, Writers, in_threads
from mindspeed_llm.data.preprocess.plain_text import PlainText
from mindspeed_llm.data.preprocess.tally import Tally
from mindspeed_llm.data.readers import BadRecords, Batch
from mindspeed_llm.data.storage.indexed import token_dtype
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
            tally = Tally(
                read=read + bad.count,
                bad=bad.count,
                first_bad=bad.first,
                empty=plain.skipped.empty,
                first_empty=plain.skipped.first,
            )
            check_some(self.job, out, tally)
            manifests = notes_of(self.job, self.tokenizer, self.engine.name, tally, out)
            out.commit(manifests)
        seconds = time.perf_counter() - started
        paths = [str(path) for path in prefixes.values()]
        summary = Summary(prefixes, manifests, tally, seconds, paths)
        summary.report()
        return summary


def check_some(job: Job, out: Writers, tally: Tally) -> None:
    """Check that there is something to write under each key.

    Raises:
        NothingToWrite: there is not.
    """
    for key, writer in out.by_key.items():
        if not writer.tokens:
            first = f" (first: {tally.first_bad})" if tally.first_bad else ""
            raise NothingToWrite(
                f'--input {job.options.input}: no token under the key "{key}": '
                f"{tally.empty} empty documents, {tally.bad} bad records{first}. "
                "Nothing was written.",
                tally,
            )
