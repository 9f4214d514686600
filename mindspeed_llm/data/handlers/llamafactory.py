"""Data sets that a ``dataset_info.json`` describes, as LLaMA-Factory keeps them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Pair
from mindspeed_llm.data.handlers.alpaca import (
    AlpacaStyleInstructionHandler,
    AlpacaStylePairwiseHandler,
)
from mindspeed_llm.data.handlers.base import Handler
from mindspeed_llm.data.handlers.openai import OpenAIInstructionHandler
from mindspeed_llm.data.handlers.sharegpt import (
    SharegptStyleInstructionHandler,
    SharegptStylePairwiseHandler,
)
from mindspeed_llm.data.readers import find_inputs

INFO = "dataset_info.json"
# (formatting, ranking) -> handler
STYLES: dict[tuple[str, bool], type[Handler]] = {
    ("alpaca", False): AlpacaStyleInstructionHandler,
    ("alpaca", True): AlpacaStylePairwiseHandler,
    ("sharegpt", False): SharegptStyleInstructionHandler,
    ("sharegpt", True): SharegptStylePairwiseHandler,
    ("openai", False): OpenAIInstructionHandler,
}
KNOWN = {"file_name", "formatting", "ranking", "columns", "tags", "num_samples"}
ELSEWHERE = {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"}
# Columns of other media, which a text template cannot write.
MEDIA = {"images", "videos", "audios", "kto_tag"}


@dataclass(frozen=True)
class Source:
    """One data set of several.

    Attributes:
        name: as ``dataset_info.json`` calls it.
        files: its files.
        handler: makes samples of its records.
        limit: how many of its records to take; None for all.
    """

    name: str
    files: tuple[Path, ...]
    handler: Handler
    limit: int | None = None


class LlamaFactoryInstructionHandler(Handler):
    """Records of the data sets that ``--input name1,name2`` names in ``--dataset-dir``.

    An entry of ``dataset_info.json`` is ``{"file_name": str, "formatting": "alpaca" | "sharegpt" |
    "openai", "ranking": bool, "columns": {...}, "tags": {...}, "num_samples": int}``, all but the
    first optional; ``columns`` and ``tags`` are as in ``--map-keys`` of the handler of that style.
    Entries that lie on a hub are refused: download them, and name the file.
    """

    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """The handlers of the entries make the samples."""
        raise NotImplementedError


def sources_of(names: str, folder: Path, additional: Sequence[str] = ()) -> list[Source]:
    """The data sets called ``name1,name2`` in ``folder``.

    Raises:
        UserError: no such folder, file or name, or an entry that cannot be used.
    """
    path = folder / INFO
    if not path.is_file():
        raise UserError(f"--dataset-dir {folder}: there is no {INFO} in it.")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}).") from error
    if not isinstance(entries, dict):
        raise UserError(f"{path}: not an object of data sets by name.")
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError(f"--input {names!r}: names no data set of {path}.")
    sources = [_source(name, entries, path, additional) for name in wanted]
    kinds = {source.handler.kind for source in sources}
    if len(kinds) > 1:
        raise UserError(
            f"--input {names}: some of these data sets hold pairs (ranking) and some do not; "
            "preprocess them apart."
        )
    return sources


def _source(name: str, entries: Mapping[str, Any], path: Path, additional: Sequence[str]) -> Source:
    if name not in entries:
        near = difflib.get_close_matches(name, entries, n=3, cutoff=0.5) or list(entries)[:8]
        raise UserError(f"--input {name}: not in {path}; there is {', '.join(near) or 'nothing'}.")
    entry = entries[name]
    where = f'{path}: "{name}"'
    if not isinstance(entry, dict):
        raise UserError(f"{where} is not an object.")
    file_name = entry.get("file_name")
    if not isinstance(file_name, str):
        hub = ", ".join(sorted(ELSEWHERE & entry.keys()))
        raise UserError(
            f'{where} has no "file_name"' + (f" ({hub}: download it first)" if hub else "") + "."
        )
    unknown = set(entry) - KNOWN - ELSEWHERE
    if unknown:
        raise UserError(f"{where}: {', '.join(sorted(unknown))} cannot be used here.")
    columns = dict(entry.get("columns") or {})
    media = MEDIA & columns.keys()
    if media:
        raise UserError(f"{where}: columns of {', '.join(sorted(media))} cannot be used here.")
    style = (entry.get("formatting", "alpaca"), bool(entry.get("ranking")))
    if style not in STYLES:
        raise UserError(f"{where}: no handler for formatting {style[0]}, ranking {style[1]}.")
    mapped = {**columns, **({"tags": entry["tags"]} if entry.get("tags") else {})}
    try:
        handler = STYLES[style](json.dumps(mapped), additional)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    limit = entry.get("num_samples")
    files, _ = find_inputs(str(path.parent / file_name))
    return Source(name, tuple(files), handler, limit)
