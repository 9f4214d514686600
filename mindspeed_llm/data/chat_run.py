"""One pass over conversations or pairs: samples of (ids, labels), packed or not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.data.chats import Made, Maker, TemplateChoice, made_in_order
from mindspeed_llm.data.conversation import Conversation, Message, ToolCall
from mindspeed_llm.data.encoder import Encoded, Engine
from mindspeed_llm.data.indexed import IndexedWriter
from mindspeed_llm.data.job import Job
from mindspeed_llm.data.manifest import Manifest
from mindspeed_llm.data.outcome import Summary, bad_line, show
from mindspeed_llm.data.packing import Packer, Sample, packed_row
from mindspeed_llm.data.pipeline import Meter, Writers, in_threads
from mindspeed_llm.data.readers import BadRecords, Batch
from mindspeed_llm.data.samples import Rows, Sizing
from mindspeed_llm.data.tally import Tally
from mindspeed_llm.data.templates import (
    IGNORE,
    ChatEncoder,
    EncodedChats,
    Template,
    TemplateError,
)
from mindspeed_llm.data.tokenizer import Tokenizer

SAMPLE_KEYS = ("input_ids", "attention_mask", "labels")
PAIR_KEYS = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")
EMPTY_EXTRA = "empty further column"


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
    trained: int = field(default=0, init=False)
    packer: Packer | None = field(default=None, init=False)

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
        if options.pack:
            assert options.seq_length is not None
            self.packer = Packer(options.seq_length)
        self.pad = pad_token(self.tokenizer) if options.pack else None

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
            if self.packer:
                self._write_packed(self.packer.finish(), out)
            self._check(bad)
            manifests = {
                key: self._manifest(key, writer, bad) for key, writer in out.by_key.items()
            }
            out.commit(manifests)
        seconds = time.perf_counter() - started
        summary = Summary(
            prefixes, manifests, 0, bad.count, seconds, (options.output_prefix,), self.tally
        )
        self._report(summary, bad)
        return summary

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
        self.trained += int(rows.trained.sum())
        tally.check(bad.count)
        if self.packer:
            self._pack(rows, out)
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

    def _pack(self, rows: Rows, out: Writers) -> None:
        assert self.packer is not None
        end = 0
        for length in rows.lengths.tolist():
            start, end = end, end + length
            # Copies: a view would keep its whole batch in memory while the sample waits.
            sample = Sample(rows.ids[start:end].copy(), rows.trained[start:end].copy())
            self._write_packed(self.packer.add(sample), out)

    def _write_packed(self, rows: Iterator[list[Sample]], out: Writers) -> None:
        assert self.packer is not None and self.pad is not None
        capacity = self.packer.capacity
        for samples in rows:
            row = packed_row(samples, capacity, self.pad)
            length = np.array([capacity], dtype=np.int64)
            mask = row.numbers if self.job.options.neat_pack else (row.numbers > 0).astype(np.int32)
            out.add(
                {
                    "input_ids": Encoded(row.ids, length),
                    "attention_mask": Encoded(mask, length),
                    "labels": Encoded(row.labels, length),
                }
            )

    def _check(self, bad: BadRecords) -> None:
        if not self.tally.kept:
            reasons = self.tally.lines(self.tally.dropped)
            if bad.count:
                reasons.append(f"malformed: {bad.count:,} (first: {bad.first})")
            raise UserError(
                f"--input {self.job.options.input}: of {self.tally.read + bad.count:,} records "
                "nothing is left to train on. Nothing was written."
                + "".join(f"\n  {reason}" for reason in reasons)
            )
        self.tally.check(bad.count, at_end=True)

    def _manifest(self, key: str, writer: IndexedWriter, bad: BadRecords) -> Manifest:
        tokenizer, options = self.tokenizer, self.job.options
        return Manifest(
            tokenizer=str(tokenizer.folder),
            tokenizer_json_sha256=tokenizer.file_hash,
            vocabulary_sha256=tokenizer.vocabulary_hash(),
            vocab_size=tokenizer.vocab_size,
            dtype=writer.dtype.name,
            eod=self.sizing.eod,
            tokens=writer.tokens,
            documents=writer.documents,
            skipped_empty=0,
            skipped_bad=bad.count,
            handler=options.handler_name or type(self.job.handler).__name__,
            key=key,
            inputs=self.job.notes(),
            encoder=self.engine.name,
            kind=self.kind,
            template=template_note(self.maker.template),
            flags=options.content_flags(),
            read=self.tally.read + bad.count,
            cut=sum(n for why, n in self.tally.noted.items() if why.startswith("cut")),
            dropped=dict(self.tally.dropped),
            pad=self.pad,
            seq_length=options.seq_length,
        )

    def _report(self, summary: Summary, bad: BadRecords) -> None:
        tally = self.tally
        tokens = summary.manifests[self.keys[0]].tokens
        rate = tokens / max(summary.seconds, 1e-9)
        lines = [
            ("records read", f"{tally.read + bad.count:,}"),
            ("samples kept", f"{tally.kept:,}"),
        ]
        if self.packer:
            share = self.packer.efficiency
            lines.append(("packed into", f"{self.packer.rows:,} rows, {share:.2%} filled"))
        lines += [
            ("tokens", f"{tokens:,} in {summary.seconds:.1f} s, {rate:,.0f}/s"),
            ("trained on", f"{self.trained:,} tokens"),
            ("changed", "\n".join(tally.lines(tally.noted)) or "0"),
            ("left out", "\n".join(tally.lines(tally.dropped)) or "0"),
            bad_line(bad),
            ("template", self.maker.template.name),
            ("encoder", self.engine.name),
            ("--data-path", summary.data_path[0]),
        ]
        show(lines)


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


def pad_token(tokenizer: Tokenizer) -> int:
    """The token that fills packed rows: the tokenizer's padding, else its EOS token."""
    pad = tokenizer.pad_token_id
    return tokenizer.eod if pad is None else int(pad)


SEARCH = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
PROBES = (
    Conversation((Message("user", "a"), Message("assistant", "b"))),
    Conversation(
        (
            Message("system", "s"),
            Message("user", "a"),
            Message("assistant", "b", reasoning="r"),
            Message("user", "c"),
            Message("assistant", "d", reasoning="r"),
        )
    ),
    Conversation(
        (
            Message("user", "a"),
            Message("assistant", "", tool_calls=(ToolCall("find", {"x": 1}),)),
            Message("tool", "t"),
            Message("assistant", "b"),
        ),
        (SEARCH,),
    ),
)


def template_note(template: Template) -> dict[str, str]:
    """A template's name, and a hash of what it writes for a few conversations."""
    digest = hashlib.sha256()
    for probe in PROBES:
        try:
            texts: Sequence[object] = [(one.text, one.spans) for one in template.samples(probe)]
        except TemplateError as error:
            texts = [str(error)]
        digest.update(repr(texts).encode())
    return {"name": template.name, "sha256": digest.hexdigest()}
