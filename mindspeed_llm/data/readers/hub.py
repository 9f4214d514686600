"""Data sets of the Hugging Face hub, through the optional ``datasets`` package."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.data.readers.records import BadRecords, Batch, Builder, Fields, values_of

NAME = re.compile(r"[\w.-]+/[\w.-]+")
BATCH_RECORDS = 2048


def looks_like_hub_name(given: str, params: str | None) -> bool:
    """Whether ``--input`` is to be loaded through ``datasets``: ``owner/name``, or with its params.

    What exists as a file or folder, or lies in a folder that exists, is no name of a hub.
    """
    path = Path(given).expanduser()
    if path.exists():
        return False
    return params is not None or (
        bool(NAME.fullmatch(given)) and not path.parent.is_dir() and not path.suffix
    )


@dataclass(frozen=True)
class HubData:
    """A data set by its name on the hub.

    Attributes:
        name: as ``datasets.load_dataset`` takes it.
        params: a JSON file with further arguments for it.
    """

    name: str
    params: str | None

    def arguments(self) -> dict[str, Any]:
        """The further arguments; the split is "train" unless they say otherwise.

        Raises:
            UserError: the file cannot be read.
        """
        found: Any = {}
        if self.params:
            try:
                found = json.loads(Path(self.params).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError(f"--hf-datasets-params {self.params}: {error}.") from error
        if not isinstance(found, dict):
            raise UserError(f"--hf-datasets-params {self.params}: not an object.")
        return {"split": "train", "streaming": True, **found}

    @property
    def fingerprint(self) -> str:
        """A hash of the name and the arguments (the content is not known before it is read)."""
        text = json.dumps([self.name, self.arguments()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, fields: Fields, bad: BadRecords) -> Iterator[Batch]:
        """Yield the records.

        Raises:
            UserError: ``datasets`` is not installed, the hub is out of reach, or has no such data.
        """
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise UserError(
                f"--input {self.name}: no such file or folder. If it is the name of a data set on "
                "a hub: pip install datasets. Or download it, and give the files."
            ) from error
        try:
            rows = load_dataset(self.name, **self.arguments())
        except Exception as error:  # whatever a builder or the network raises
            offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("HF_DATASETS_OFFLINE")
            words = " ".join(str(error).split())[:300]
            raise UserError(
                f"--input {self.name}: neither a file here nor a data set that could be loaded"
                f"{' (HF_HUB_OFFLINE is set)' if offline else ''}: {words}"
            ) from error
        builder = Builder(Path(self.name), fields, 0)
        for number, row in enumerate(rows, 1):
            values, fault = values_of(row, fields)
            if fault:
                bad.reject(f"{self.name}:{number}", fault)
                continue
            builder.add(number, values, 1)
            if len(builder.positions) == BATCH_RECORDS:
                yield builder.take()
        yield builder.take()
