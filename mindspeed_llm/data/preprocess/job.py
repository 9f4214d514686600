"""What a run reads and with what: files or data sets, handlers, and the batches they give."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindspeed.errors import UserError
from mindspeed_llm.console import warn
from mindspeed_llm.data.handlers import (
    Handler,
    LlamaFactoryInstructionHandler,
    TextHandler,
    get_handler,
)
from mindspeed_llm.data.handlers.llamafactory import Source, sources_of
from mindspeed_llm.data.preprocess.mixing import first_records, mixed
from mindspeed_llm.data.preprocess.options import PreprocessOptions
from mindspeed_llm.data.readers import (
    BadRecords,
    Batch,
    Part,
    find_inputs,
    read_batches,
    share_out,
    whole,
)
from mindspeed_llm.data.readers.hub import HubData, looks_like_hub_name
from mindspeed_llm.data.storage.manifest import InputNote, note_of


@dataclass(frozen=True)
class Job:
    """The input of a run.

    Attributes:
        options: what was asked for.
        handlers: one, or one for each of several data sets.
        parts: the files to read, whole or in part.
        sources: the data sets by name, if the input names such.
        hub: a data set to load through ``datasets``, if the input names one.
    """

    options: PreprocessOptions
    handlers: Sequence[Handler]
    parts: Sequence[Part] = ()
    sources: Sequence[Source] = ()
    hub: HubData | None = None
    unknown: Sequence[Path] = field(default=(), repr=False)

    @property
    def handler(self) -> Handler:
        """The first handler, which speaks for all in what they share."""
        return self.handlers[0]

    @property
    def files(self) -> list[Path]:
        """The files read."""
        named = [file for source in self.sources for file in source.files]
        return list(dict.fromkeys([part.path for part in self.parts] + named))

    @property
    def size(self) -> int:
        """Bytes to read, about; 0 if unknown."""
        named = sum(file.stat().st_size for source in self.sources for file in source.files)
        return sum(part.size for part in self.parts) + named

    def notes(self) -> tuple[InputNote, ...]:
        """What the files are."""
        if self.hub:
            return (InputNote(self.hub.name, 0, 0.0, self.hub.fingerprint),)
        return tuple(map(note_of, self.files))

    def batches(self, bad: BadRecords) -> Iterator[Batch]:
        """The records, in order."""
        options = self.options
        if self.sources:
            return mixed(
                self.sources,
                bad,
                options.mix_strategy,
                options.interleave_probs,
                options.seed,
                options.max_samples,
            )
        fields = self.handler.fields
        read = self.hub.read(fields, bad) if self.hub else read_batches(self.parts, fields, bad)
        return first_records(read, options.max_samples)

    def warn_of_unread(self) -> None:
        """Say which files of a folder are left out."""
        if self.unknown:
            names = ", ".join(path.name for path in self.unknown[:10])
            more = f" and {len(self.unknown) - 10} more" if len(self.unknown) > 10 else ""
            warn(f"not read, of no known format: {names}{more}")


def open_job(options: PreprocessOptions) -> Job:
    """Find the input and make its handlers.

    Raises:
        UserError: a mistake in the options or the input.
    """
    kind = get_handler(options.handler_name)
    _check_prefix(options.output_prefix)
    if kind is LlamaFactoryInstructionHandler:
        return _named_job(options)
    handler = _one_handler(kind, options)
    _check_chat_options(handler, options)
    if options.dataset_dir or options.mix_strategy != "concat" or options.interleave_probs:
        raise UserError(
            "--dataset-dir, --mix-strategy and --interleave-probs go with "
            "--handler-name LlamaFactoryInstructionHandler."
        )
    if options.max_samples and (options.shard or options.n_subs > 1):
        raise UserError(
            "--max-samples takes the first records of all: it does not go with --shard or --n-subs."
        )
    if options.engine == "ray" and options.n_subs == 1:
        raise UserError("--engine ray makes the parts of --n-subs: say how many.")
    if looks_like_hub_name(options.input, options.hf_datasets_params):
        if options.shard or options.n_subs > 1:
            raise UserError("--shard and --n-subs share out files, not data sets of a hub.")
        return Job(options, [handler], hub=HubData(options.input, options.hf_datasets_params))
    files, unknown = find_inputs(options.input)
    parts = whole(files)
    if options.shard:
        index, count = options.shard
        parts = share_out(files, count)[index - 1]
    return Job(options, [handler], parts, unknown=unknown)


def _one_handler(kind: type[Handler], options: PreprocessOptions) -> Handler:
    if issubclass(kind, TextHandler):
        if len(set(options.json_keys)) < len(options.json_keys):
            raise UserError(f"--json-keys names a key twice: {' '.join(options.json_keys)}")
        return kind(options.map_keys, options.dataset_additional_keys, options.json_keys)
    if tuple(options.json_keys) != ("text",):
        raise UserError(f"--json-keys is for plain text; {kind.__name__} takes --map-keys.")
    return kind(options.map_keys, options.dataset_additional_keys)


def _named_job(options: PreprocessOptions) -> Job:
    """Data sets of a dataset_info.json."""
    if not options.dataset_dir:
        raise UserError(
            "LlamaFactoryInstructionHandler needs --dataset-dir, the folder of its json."
        )
    if options.map_keys:
        raise UserError("--map-keys: the columns stand in dataset_info.json.")
    if options.shard or options.n_subs > 1:
        raise UserError("--shard and --n-subs share out files, not data sets by name.")
    folder = Path(options.dataset_dir)
    sources = sources_of(options.input, folder, options.dataset_additional_keys)
    shares = options.interleave_probs
    if shares and (options.mix_strategy == "concat" or len(shares) != len(sources)):
        raise UserError(
            f"--interleave-probs has {len(shares)} numbers for {len(sources)} data sets and "
            f"--mix-strategy {options.mix_strategy}: it takes one for each, with interleave_under "
            "or interleave_over."
        )
    _check_chat_options(sources[0].handler, options)
    return Job(options, [source.handler for source in sources], sources=sources)


def _check_chat_options(handler: Handler, options: PreprocessOptions) -> None:
    """Refuse what has no meaning for the handler's kind of data."""
    name = options.handler_name or type(handler).__name__
    if handler.kind == "pretrain":
        given = {
            "--seq-length": options.seq_length,
            "--pack": options.pack,
            "--prompt-type": options.template.get("prompt_type"),
        }
        wrong = [flag for flag, value in given.items() if value]
        if wrong:
            raise UserError(
                f"{', '.join(wrong)}: {name} makes plain text, which has no samples to form; "
                "choose a handler of instructions."
            )
        return
    if options.neat_pack and not options.pack:
        raise UserError("--neat-pack needs --pack.")
    if options.pack and handler.kind != "instruction":
        raise UserError(f"--pack: the samples of {name} cannot share a row.")
    if options.pack and options.seq_length is None:
        raise UserError("--pack needs --seq-length, the length of a row.")
    if options.pack and options.dataset_additional_keys:
        raise UserError("--dataset-additional-keys: packed rows have no place for further values.")
    if options.over_long and options.seq_length is None:
        raise UserError("--over-long needs --seq-length.")


def _check_prefix(output_prefix: str) -> None:
    if output_prefix.endswith(os.sep) or Path(output_prefix).is_dir():
        name = Path(output_prefix) / "corpus"
        raise UserError(
            f"--output-prefix {output_prefix} is a folder; files are named by what follows it: "
            f"give e.g. {name}, and {name}_text_document.bin will be written"
        )
