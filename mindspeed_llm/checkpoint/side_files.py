"""``config.json``, tokenizer and template files: they travel with the weights.

A Megatron checkpoint keeps them in ``hf_files/`` beside its iterations, with a small note of what
the original weight files looked like; an export takes them from there.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mindspeed_llm.checkpoint import paths
from mindspeed_llm.files import atomic_folder
from mindspeed_llm.models.registry import read_hf_config

ORIGIN = "origin.json"
CONFIG = "config.json"
CARRIED = ("*.json", "*.model", "*.jinja", "*.txt", "*.tiktoken", "*.py")
REPORT = "conversion.json"
NOT_CARRIED = ("*.index.json", ORIGIN, REPORT)
TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True)
class Origin:
    """What an export must know of the original weight files to equal them.

    Attributes:
        weights_dtype: type of most weights, e.g. ``bfloat16`` (``config.json`` may say another).
        redundant_output: name of an output layer that was stored although it is tied.
    """

    weights_dtype: str | None = None
    redundant_output: str | None = None


def listed(folder: Path) -> list[Path]:
    """The files of ``folder`` that travel, sorted."""
    found = {path for pattern in CARRIED for path in folder.glob(pattern) if path.is_file()}
    skipped = {path for pattern in NOT_CARRIED for path in folder.glob(pattern)}
    return sorted(found - skipped)


def copy(source: Path, target: Path) -> list[str]:
    """Copy the files that travel; returns their names."""
    for path in listed(source):
        shutil.copyfile(path, target / path.name)
    if (source / TEMPLATES).is_dir():
        shutil.copytree(source / TEMPLATES, target / TEMPLATES, dirs_exist_ok=True)
    return [path.name for path in listed(source)]


def keep(source: Path, root: Path, origin: Origin, config: dict[str, Any]) -> None:
    """Put the files of ``source``, with ``config``, into ``root/hf_files``, all at once."""
    with atomic_folder(root / paths.HF_FILES) as folder:
        copy(source, folder)
        write_config(folder, config)
        (folder / ORIGIN).write_text(json.dumps(asdict(origin), indent=2) + "\n")


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Make ``folder/config.json`` say ``config``; the file's text stays if it does already."""
    path = folder / CONFIG
    if not path.is_file() or read_hf_config(folder) != config:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def find(root: Path, hf_cfg_dir: Path | str | None) -> Path | None:
    """Where the side files of a Megatron checkpoint are: the given folder, or its own."""
    if hf_cfg_dir is not None:
        return Path(hf_cfg_dir)
    own = root / paths.HF_FILES
    return own if own.is_dir() else None


def vocab_size(folder: Path | None) -> int | None:
    """True number of vocabulary rows according to ``config.json``."""
    return None if folder is None else read_hf_config(folder).get("vocab_size")


def read_origin(root: Path) -> Origin:
    """The note in ``root/hf_files``; an empty one if there is none."""
    path = root / paths.HF_FILES / ORIGIN
    if not path.is_file():
        return Origin()
    values = json.loads(path.read_text())
    known = {key: values.get(key) for key in Origin.__dataclass_fields__}
    return Origin(**known)


def dtype_field(config: dict[str, Any]) -> str | None:
    """The type that ``config.json`` names, in either spelling."""
    return config.get("dtype", config.get("torch_dtype"))


def with_dtype(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """The config with its type field (in the spelling it has) set to ``dtype``."""
    keys = [key for key in ("dtype", "torch_dtype") if key in config] or ["torch_dtype"]
    return {**config, **dict.fromkeys(keys, dtype)}
