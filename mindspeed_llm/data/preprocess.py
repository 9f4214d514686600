"""``preprocess``: text files -> Megatron's indexed data sets.

Reading, encoding and writing run at the same time in three threads, a few batches apart; the
engines release Python's lock while they encode. Memory does not grow with the corpus, but for the
4 bytes a document that the index costs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import box, say, warn
from mindspeed_llm.data.encoder import Engine, EnginesDiffer, choose_engine, set_threads
from mindspeed_llm.data.handlers import DEFAULT_HANDLER, GeneralPretrainHandler, get_handler
from mindspeed_llm.data.indexed import IndexedWriter, bin_path, merge_indexed, token_dtype
from mindspeed_llm.data.manifest import Manifest, merge_manifests, note_of
from mindspeed_llm.data.pipeline import Meter, Writers, in_threads
from mindspeed_llm.data.readers import BadRecords, Batch, find_inputs, read_batches
from mindspeed_llm.data.tokenizer import Tokenizer, load_tokenizer

SAMPLE_TEXTS = 200
SAMPLE_CHARACTERS = 4000


@dataclass(frozen=True)
class PreprocessOptions:
    """What to preprocess, and how; the fields are named as the flags.

    Attributes:
        input: a file, a folder or a glob pattern.
        output_prefix: data sets are ``{output_prefix}_{key}_document``.
        json_keys: the keys (columns) to take; a dotted path for nested ones.
        handler_name: see :mod:`mindspeed_llm.data.handlers`.
        append_eod: end each document with the tokenizer's EOS token.
        workers: threads (processes for a Python tokenizer); 0 for one a core.
        log_interval: documents between two log lines, where there is no terminal for a bar.
        on_error: "stop" at a bad record or "skip" it.
        use_fast: False: encode with the tokenizer's own Python code.
        trust_remote_code: run the tokenizer folder's code.
    """

    input: str
    output_prefix: str
    json_keys: Sequence[str] = ("text",)
    handler_name: str | None = None
    append_eod: bool = False
    workers: int = 0
    log_interval: int = 1000
    on_error: str = "stop"
    use_fast: bool = True
    trust_remote_code: bool = False


@dataclass(frozen=True)
class Summary:
    """What a run did; ``prefixes`` are the data sets, as ``--data-path`` takes them."""

    prefixes: dict[str, Path]
    manifests: dict[str, Manifest]
    skipped_empty: int
    skipped_bad: int
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens written, over all keys."""
        return sum(manifest.tokens for manifest in self.manifests.values())

    @property
    def documents(self) -> int:
        """Documents written, over all keys."""
        return sum(manifest.documents for manifest in self.manifests.values())


def output_prefixes(options: PreprocessOptions) -> dict[str, Path]:
    """The data set of each key."""
    return {key: Path(f"{options.output_prefix}_{key}_document") for key in options.json_keys}


def preprocess(options: PreprocessOptions, tokenizer: Tokenizer) -> Summary:
    """Turn text files into one indexed data set a key.

    Raises:
        UserError: a mistake in the input or the options; no data set is left half-written.
    """
    get_handler(options.handler_name)
    _check_prefix(options.output_prefix)
    if len(set(options.json_keys)) < len(options.json_keys):
        raise UserError(f"--json-keys names a key twice: {' '.join(options.json_keys)}")
    files, unknown = find_inputs(options.input)
    if unknown:
        names = ", ".join(path.name for path in unknown[:10])
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        warn(f"not read, of no known format: {names}{more}")
    if tokenizer.is_fast and not options.use_fast:
        warn("transformers has no Python form of this tokenizer: its fast form is used")
    workers = options.workers or len(os.sched_getaffinity(0))
    set_threads(workers)
    bad = BadRecords(skip=options.on_error == "skip")
    batches = read_batches(files, options.json_keys, bad)
    head = list(islice(batches, 1))
    engine = choose_engine(
        tokenizer, sample_of(head), workers, options.use_fast, options.trust_remote_code
    )
    try:
        return Run(options, tokenizer, files, bad, engine).run(chain(head, batches))
    except EnginesDiffer as error:
        assert engine.fallback is not None
        warn(f"{error}; starting again with {engine.fallback.name}")
        engine.fallback.why = str(error)
        bad = BadRecords(skip=bad.skip)
        again = read_batches(files, options.json_keys, bad)
        return Run(options, tokenizer, files, bad, engine.fallback).run(again)
    finally:
        engine.close()


def _check_prefix(output_prefix: str) -> None:
    if output_prefix.endswith(os.sep) or Path(output_prefix).is_dir():
        name = Path(output_prefix) / "corpus"
        raise UserError(
            f"--output-prefix {output_prefix} is a folder; files are named by what follows it: "
            f"give e.g. {name}, and {name}_text_document.bin will be written"
        )


def sample_of(batches: Sequence[Batch]) -> list[str]:
    """Texts of the input for the start-up comparison: beginnings, spread over the first batch."""
    columns = [column for batch in batches for column in batch.columns.values()]
    texts = [text for column in columns for text in column if text]
    return [text[:SAMPLE_CHARACTERS] for text in texts[:: max(1, len(texts) // SAMPLE_TEXTS)]]


@dataclass(frozen=True)
class Run:
    """One pass over the input with one engine."""

    options: PreprocessOptions
    tokenizer: Tokenizer
    files: Sequence[Path]
    bad: BadRecords
    engine: Engine

    def run(self, batches: Iterator[Batch]) -> Summary:
        """Encode and write ``batches``."""
        dtype = token_dtype(self.tokenizer.vocab_size)
        reason = f" ({self.engine.why})" if self.engine.why else ""
        say(
            f"> encoder: {self.engine.name}{reason}; "
            f"vocabulary of {self.tokenizer.vocab_size} ids, stored as {dtype.name}"
        )
        handler = get_handler(self.options.handler_name)(
            self.engine,
            self.options.json_keys,
            self.tokenizer.eod if self.options.append_eod else None,
            self.engine.added_per_text,
        )
        prefixes = output_prefixes(self.options)
        started = time.perf_counter()
        meter = Meter(self.files, self.options.log_interval)
        with Writers(prefixes, dtype) as out:
            with meter:
                for batch, encoded in in_threads(batches, handler.encode):
                    out.add(encoded)
                    meter.update(batch, encoded)
            self._check(out, handler)
            manifests = {
                key: self._manifest(key, writer, handler) for key, writer in out.by_key.items()
            }
            out.commit(manifests)
        seconds = time.perf_counter() - started
        summary = Summary(prefixes, manifests, handler.skipped.empty, self.bad.count, seconds)
        self._report(summary, handler)
        return summary

    def _check(self, out: Writers, handler: GeneralPretrainHandler) -> None:
        for key, writer in out.by_key.items():
            if not writer.tokens:
                raise UserError(
                    f'--input {self.options.input}: no token under the key "{key}": '
                    f"{handler.skipped.empty} empty documents, {self.bad.count} bad records"
                    f"{' (first: ' + self.bad.first + ')' if self.bad.first else ''}. "
                    "Nothing was written."
                )

    def _manifest(
        self, key: str, writer: IndexedWriter, handler: GeneralPretrainHandler
    ) -> Manifest:
        return Manifest(
            tokenizer=str(self.tokenizer.folder),
            tokenizer_json_sha256=self.tokenizer.file_hash,
            vocabulary_sha256=self.tokenizer.vocabulary_hash(),
            vocab_size=self.tokenizer.vocab_size,
            dtype=writer.dtype.name,
            eod=handler.eod,
            tokens=writer.tokens,
            documents=writer.documents,
            skipped_empty=handler.skipped.empty,
            skipped_bad=self.bad.count,
            handler=self.options.handler_name or DEFAULT_HANDLER,
            key=key,
            inputs=tuple(map(note_of, self.files)),
            encoder=self.engine.name,
        )

    def _report(self, summary: Summary, handler: GeneralPretrainHandler) -> None:
        rate = summary.tokens / max(summary.seconds, 1e-9)
        empty = f" (first: {handler.skipped.first})" if handler.skipped.first else ""
        first_bad = f" (first: {self.bad.first})" if self.bad.first else ""
        box(
            "preprocessed",
            [
                f"documents      {summary.documents:,}",
                f"tokens         {summary.tokens:,} in {summary.seconds:.1f} s, {rate:,.0f}/s",
                f"skipped empty  {summary.skipped_empty:,}{empty}",
                f"skipped bad    {summary.skipped_bad:,}{first_bad}",
                f"end tokens     {'one a document' if handler.eod is not None else 'none'}",
                f"encoder        {self.engine.name}",
                *(
                    f"--data-path    {path}  (.bin {bin_path(path).stat().st_size:,} bytes)"
                    for path in summary.prefixes.values()
                ),
            ],
        )


def merge_groups(folder: Path, output_prefix: str, groups: Sequence[str]) -> dict[str, Path]:
    """Merge the data sets of ``folder`` whose names contain a group's key, in order of their names.

    Returns:
        for each key the merged data set, ``{output_prefix}_{key}``.

    Raises:
        UserError: no such folder, no data set of a group, or data sets that do not go together.
    """
    if not folder.is_dir():
        raise UserError(f"--merge-group-keys: --input {folder} is not a folder of data sets.")
    names = sorted(path.stem for path in folder.glob("*.idx"))
    members = {key: [folder / name for name in names if key in name] for key in groups}
    for key, prefixes in members.items():
        if not prefixes:
            raise UserError(
                f'--merge-group-keys {key}: no data set in {folder} has "{key}" in its name; '
                f"there are: {', '.join(names[:10]) or 'none'}."
            )
    merged: dict[str, Path] = {}
    for key, prefixes in members.items():
        target = Path(f"{output_prefix}_{key}")
        if target.resolve() in [prefix.resolve() for prefix in prefixes]:
            raise UserError(f"{target}: the merged data set would replace one of its parts.")
        manifest = merge_manifests(prefixes)
        writer = merge_indexed(prefixes, target)
        if manifest:
            manifest.write(target)
        say(
            f"> {target}: {writer.documents:,} documents, {writer.tokens:,} tokens of "
            f"{len(prefixes)} data sets: {', '.join(prefix.name for prefix in prefixes)}"
        )
        merged[key] = target
    return merged


def main(argv: Sequence[str]) -> int:
    """The command: parse the flags, load the tokenizer, preprocess (or merge).

    Raises:
        UserError: see :func:`preprocess`.
    """
    from mindspeed_llm.flags import parse

    config = parse("preprocess", argv)
    flags, names = config.preprocess, config.tokenizer
    # parse() demands both.
    assert flags.input is not None
    assert flags.output_prefix is not None
    if flags.merge_group_keys:
        merge_groups(Path(flags.input), flags.output_prefix, flags.merge_group_keys)
        return 0
    options = PreprocessOptions(
        input=flags.input,
        output_prefix=flags.output_prefix,
        json_keys=flags.json_keys,
        handler_name=flags.handler_name,
        append_eod=flags.append_eod,
        workers=flags.workers,
        log_interval=flags.log_interval,
        on_error=flags.on_error,
        use_fast=not names.tokenizer_not_use_fast,
        trust_remote_code=names.trust_remote_code,
    )
    # What is wrong with the request shows before transformers is loaded, which takes seconds.
    get_handler(options.handler_name)
    find_inputs(options.input)
    tokenizer = load_tokenizer(
        names.tokenizer_type or "PretrainedFromHF",
        names.tokenizer_name_or_path or names.tokenizer_model,
        options.use_fast,
        options.trust_remote_code,
    )
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"--tokenizer-type {names.tokenizer_type} cannot encode text.")
    preprocess(options, tokenizer)
    return 0
