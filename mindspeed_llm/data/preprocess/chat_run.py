"""One pass over conversations or pairs: samples of (ids, labels), packed or not."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from mindspeed_llm.console import say
from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.preprocess.chats import Made, Maker, TemplateChoice, made_in_order
from mindspeed_llm.data.preprocess.job import Job
from mindspeed_llm.data.preprocess.outcome import NothingToWrite, Summary, notes_of
from mindspeed_llm.data.preprocess.packing import PackedRows
from mindspeed_llm.data.preprocess.pipeline import Meter, Writers, in_threads
from mindspeed_llm.data.preprocess.samples import Rows, Sizing
from mindspeed_llm.data.preprocess.tally import Tally
from mindspeed_llm.data.preprocess.template_note import template_note
from mindspeed_llm.data.readers import BadRecords, Batch
from mindspeed_llm.data.templates import IGNORE, ChatEncoder, EncodedChats
from mindspeed_llm.data.tokenizer import Tokenizer

SAMPLE_KEYS = ("input_ids", "attention_mask", "labels")
PAIR_KEYS = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")


@dataclass(frozen=True)
class Piece:
    """A batch on its way: its records, the texts made of them, their tokens."""

    batch: Batch
    made: Made
    encoded: EncodedChats
    extras: Mapping[str, Encoded]


@dataclass
class ChatRun:
    """One pass over the input with one engine."""

    job: Job
    tokenizer: Tokenizer
    engine: Engine
    maker: Maker
    choice: TemplateChoice
    workers: int = 1
    tally: Tally = field(init=False)
    packed: PackedRows | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        options = self.job.options
        self.kind = self.job.handler.kind
        self.tally = Tally(options.max_dropped_share)
        self.encoder = ChatEncoder(self.engine, self.tokenizer)
        self.sizing = Sizing(
            eod=self.tokenizer.eod if options.append_eod else None,
            seq_length=options.seq_length,
            cut=options.cut,
            group=2 if self.kind == "pairwise" else 1,
            learn=self.kind != "prompt",
        )
        self.packed = PackedRows.of(options, self.tokenizer)

    @property
    def extra_keys(self) -> tuple[str, ...]:
        """Further columns that become data sets; a prompt's right answer is one of them."""
        answers = ("labels",) if self.kind == "prompt" and self._has_answers else ()
        return (*answers, *self.job.options.dataset_additional_keys)

    @property
    def _has_answers(self) -> bool:
        return "response" in self.job.handler.required or "messages" in self.job.handler.required

    @property
    def keys(self) -> tuple[str, ...]:
        """The data sets written."""
        if self.kind == "pairwise":
            return PAIR_KEYS
        base = SAMPLE_KEYS[:2] if self.kind == "prompt" else SAMPLE_KEYS
        return tuple(dict.fromkeys((*base, *self.extra_keys)))

    def run(self, batches: Iterator[Batch], bad: BadRecords) -> Summary:
        """Make, encode and write the samples of ``batches``."""
        options = self.job.options
        reason = f" ({self.engine.why})" if self.engine.why else ""
        say(f"> encoder: {self.engine.name}{reason}; template: {self.maker.template.name}")
        prefixes = {
            key: Path(f"{options.output_prefix}_packed_{key}_document") for key in self.keys
        }
        started = time.perf_counter()
        made = made_in_order(batches, self.maker, self.choice, self.workers, self.job.size)
        with Writers(prefixes, np.dtype(np.int32)) as out:
            with Meter(self.job.size, options.log_interval) as meter:
                for (batch, _), piece in in_threads(made, self._encode):
                    self._take(piece, bad, out)
                    meter.update(batch, piece.encoded.ids.size)
            if self.packed:
                self.packed.finish(out)
            self._count_bad(bad)
            check_some(self.job, self.tally)
            manifests = notes_of(
                self.job,
                self.tokenizer,
                self.engine.name,
                self.tally,
                out,
                template=template_note(self.maker.template),
                cut=sum(n for why, n in self.tally.noted.items() if why.startswith("cut")),
                pad=self.packed.pad if self.packed else None,
                seq_length=options.seq_length,
            )
            out.commit(manifests)
        seconds = time.perf_counter() - started
        packed = self.packed.counts if self.packed else None
        paths = (options.output_prefix,)
        summary = Summary(prefixes, manifests, self.tally, seconds, paths, packed)
        summary.report()
        return summary

    def _count_bad(self, bad: BadRecords) -> None:
        """Malformed records count as read, whoever found them."""
        self.tally.read += bad.count - self.tally.bad
        self.tally.bad, self.tally.first_bad = bad.count, bad.first

    def _encode(self, item: tuple[Batch, Made]) -> Piece:
        batch, made = item
        extras = {
            key: self.engine.encode([as_plain(extra[key]) for extra in made.extras], False)
            for key in self.extra_keys
        }
        return Piece(batch, made, self.encoder.encode(made.rendered), extras)

    def _take(self, piece: Piece, bad: BadRecords, out: Writers) -> None:
        """Count, size and write a batch."""
        batch, made, tally = piece.batch, piece.made, self.tally
        for index, why in made.malformed:
            bad.reject(batch.place(index), why)
        tally.read += len(batch.positions) - len(made.malformed)
        for index, why in made.odd:
            tally.drop(why, batch.place(index))
        for index, why in made.noted:
            tally.note(why, batch.place(index))
        group = self.sizing.group

        def count(why: str, sample: int) -> None:
            place = batch.place(made.rows[sample // group])
            (tally.note if why.startswith("cut") else tally.drop)(why, place)

        rows = self.sizing.apply(piece.encoded, count)
        tally.kept += rows.lengths.size // group
        tally.trained += int(rows.trained.sum())
        self._count_bad(bad)
        tally.check()
        if self.packed:
            self.packed.add(rows.ids, rows.trained, rows.lengths, out)
        else:
            out.add(self._columns(rows, piece))

    def _columns(self, rows: Rows, piece: Piece) -> dict[str, Encoded]:
        """What is written of samples that stand alone."""
        labels = np.where(rows.trained, rows.ids, np.int32(IGNORE))
        if self.kind == "pairwise":
            first = np.arange(rows.lengths.size) % 2 == 0
            of_first = np.repeat(first, rows.lengths)
            return {
                "chosen_input_ids": Encoded(rows.ids[of_first], rows.lengths[first]),
                "chosen_labels": Encoded(labels[of_first], rows.lengths[first]),
                "rejected_input_ids": Encoded(rows.ids[~of_first], rows.lengths[~first]),
                "rejected_labels": Encoded(labels[~of_first], rows.lengths[~first]),
            }
        columns = {
            "input_ids": Encoded(rows.ids, rows.lengths),
            "attention_mask": Encoded(np.ones_like(rows.ids), rows.lengths),
            "labels": Encoded(labels, rows.lengths),
        }
        for key, encoded in piece.extras.items():
            columns[key] = chosen(encoded, rows.kept)
        return {key: columns[key] for key in self.keys}


def check_some(job: Job, tally: Tally) -> None:
    """Check that enough records are left.

    Raises:
        NothingToWrite: none is.
        UserError: too many were left out.
    """
    if not tally.kept:
        reasons = "".join(f"\n  {reason}" for reason in tally.reasons())
        raise NothingToWrite(
            f"--input {job.options.input}: of {tally.read:,} records nothing is left to train on. "
            f"Nothing was written.{reasons}",
            tally,
        )
    tally.check(at_end=True)


def as_plain(value: object) -> str:
    """A further value as text: a text itself, else its JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def chosen(encoded: Encoded, rows: np.ndarray) -> Encoded:
    """Some of the texts, by number."""
    keep = np.zeros(encoded.lengths.size, dtype=bool)
    keep[rows] = True
    return Encoded(
        encoded.ids[np.repeat(keep, encoded.lengths)].astype(np.int32), encoded.lengths[keep]
    )
