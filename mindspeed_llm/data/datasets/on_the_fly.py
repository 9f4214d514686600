"""Raw files given as ``--data-path``: prepared once into a cache, then used like prepared data.

The name in the cache is a hash of what the result depends on (the files, the flags, tokenizer and
template), so that a change of any of them prepares anew and a second run prepares nothing. One
process prepares for all that see the same folder; the others wait.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.data.storage.indexed import idx_path
from mindspeed_llm.data.storage.manifest import VERSION, note_of
from mindspeed_llm.data.storage.parts import part_prefix
from mindspeed_llm.data.tokenizer import NullTokenizer, Tokenizer

if TYPE_CHECKING:
    from mindspeed_llm.data.preprocess.options import PreprocessOptions
    from mindspeed_llm.flags import Config
    from mindspeed_llm.flags.data import DataFlags

PATHS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
# Flags that say how raw files are prepared.
ONLY_RAW = ("pack", "map_keys", "json_keys", "append_eod", "dataset_additional_keys")
BYTES_A_SECOND = 1 << 20


def prepare_raw(config: Config, tokenizer: Tokenizer | NullTokenizer) -> DataFlags:
    """The data flags with each raw file, folder or pattern replaced by the data made of it.

    Collective over all ranks where there is any.

    Raises:
        UserError: what preprocessing raises, or flags that do not say how to prepare.
    """
    data = config.data
    named = {name: getattr(data, name) or () for name in PATHS}
    raw = dict.fromkeys(word for words in named.values() for word in words if is_raw(word))
    if not raw:
        for dest in ONLY_RAW:
            if dest in config.given:
                spelled = f"--{dest.replace('_', '-')}"
                say(f"> {spelled} has no effect: the data are prepared already")
        return data
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(
            f"--data-path {next(iter(raw))} is raw data, which needs a tokenizer: give "
            "--tokenizer-name-or-path."
        )
    made = {word: _prepare(word, config, tokenizer) for word in raw}
    changes: dict[str, Any] = {
        name: tuple(made.get(word, word) for word in words)
        for name, words in named.items()
        if words
    }
    return dataclasses.replace(data, **changes)


def is_raw(word: str) -> bool:
    """Whether a word of ``--data-path`` names files that are not prepared."""
    if idx_path(word).is_file() or idx_path(part_prefix(word, "input_ids")).is_file():
        return False
    return Path(word).exists()


def _prepare(word: str, config: Config, tokenizer: Tokenizer) -> str:
    """The prefix of the data made of ``word``, once it is there."""
    from mindspeed_llm.data.datasets.index_cache import built_once, choose_builder
    from mindspeed_llm.data.preprocess.command import preprocess
    from mindspeed_llm.data.readers import find_inputs

    files, _ = find_inputs(word)
    folder = _folder(config.data, Path(word))
    options = _options(word, config)
    prefix = folder / f"{Path(word).name.partition('.')[0]}-{_digest(files, options, tokenizer)}"
    options = dataclasses.replace(options, output_prefix=str(prefix))
    result = str(prefix)
    if not config.data.is_instruction_dataset:
        result = f"{prefix}_{options.json_keys[0]}_document"

    def build() -> str:
        if is_raw_result(result, config.data) or config.data.overwrite_cache:
            say(f"> preparing {word} (kept as {result})")
            preprocess(options, tokenizer)
        else:
            say(f"> {word}: prepared before, {result}")
        return result

    builder = choose_builder(folder, True, False if config.data.no_shared_storage else None)
    size = sum(path.stat().st_size for path in files)
    timeout = timedelta(seconds=1800 + size / BYTES_A_SECOND)
    # Those who wait only look whether it is there.
    return built_once(build, builder, True, folder, timeout)


def is_raw_result(result: str, data: DataFlags) -> bool:
    """Whether the prepared data is still missing."""
    # The one that is published last.
    last = part_prefix(result, "labels") if data.is_instruction_dataset else result
    return not idx_path(last).is_file()


def _options(word: str, config: Config) -> PreprocessOptions:
    from mindspeed_llm.data.preprocess.options import PreprocessOptions, template_options

    data = config.data
    if data.is_instruction_dataset and "handler_name" not in config.given:
        raise UserError(
            f"--data-path {word} is raw data: name the --handler-name that makes samples of it "
            "(AlpacaStyleInstructionHandler, SharegptStyleInstructionHandler, ...)."
        )
    if len(data.json_keys) != 1:
        raise UserError(
            f"--data-path {word}: training takes one key of raw data, not --json-keys "
            f"{' '.join(data.json_keys)}; preprocess the others into data sets of their own."
        )
    return PreprocessOptions(
        input=word,
        output_prefix="",
        json_keys=data.json_keys,
        handler_name=data.handler_name,
        append_eod=data.append_eod,
        use_fast=not config.tokenizer.tokenizer_not_use_fast,
        trust_remote_code=config.tokenizer.trust_remote_code,
        map_keys=data.map_keys,
        template=template_options(data, config.tokenizer),
        seq_length=config.training.seq_length if data.is_instruction_dataset else None,
        pack=data.pack or data.neat_pack,
        neat_pack=data.neat_pack,
    )


def _folder(data: DataFlags, source: Path) -> Path:
    """Where prepared data are kept: as told, beside the source, or in the user's own cache."""
    if data.cache_dir:
        return Path(data.cache_dir).expanduser()
    beside = source.resolve().parent
    if os.access(beside, os.W_OK):
        return beside / "prepared"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "mindspeed_llm" / "prepared"


def _digest(files: Sequence[Path], options: PreprocessOptions, tokenizer: Tokenizer) -> str:
    """A hash of all that the result depends on; times and places of files are none of it."""
    template = options.template.get("prompt_type_path")
    depends = {
        "version": VERSION,
        "files": [(path.name, note_of(path).sha256) for path in files],
        "handler": options.handler_name,
        "keys": list(options.json_keys),
        "flags": options.content_flags(),
        "fast": options.use_fast,
        "tokenizer": tokenizer.vocabulary_hash(),
        "its template": tokenizer.chat_template,
        "templates": Path(template).read_text(encoding="utf-8") if template else None,
    }
    text = json.dumps(depends, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
