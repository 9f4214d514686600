"""A tiny random model with a real tokenizer, in a folder as a user has one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.data import small
from tests.families import write_tiny_hf


def write_model(folder: Path, family: str = "qwen3", **config: Any) -> Path:
    """Weights, ``config.json`` and tokenizer files.

    Args:
        config: keys of ``config.json`` other than those of :func:`write_tiny_hf`.
    """
    tokenizer = small.byte_level()
    rows = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    write_tiny_hf(folder, family, **{"vocab_size": rows, **config})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    return folder
