"""``checkpoint.json`` in an iteration folder: which files belong to it, and how long they are.

Written last into a folder that is still under its temporary name, so a folder with a manifest
whose sizes fit is whole.
"""

from __future__ import annotations

import json
from pathlib import Path

from mindspeed_llm.checkpoint import paths
from mindspeed_llm.files import write_text_atomically

NAME = "checkpoint.json"


def write(folder: Path, iteration: int, ckpt_format: str) -> None:
    """Record every file below ``folder``."""
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = {"iteration": iteration, "format": ckpt_format, "files": files}
    write_text_atomically(folder / NAME, json.dumps(content, indent=1))


def damage(folder: Path) -> list[str]:
    """What is missing or cut short in an iteration folder; empty if it is whole.

    A folder of another tool has no manifest; then only the presence of its files is checked.
    """
    missing = paths.missing_parts(folder)
    if missing:
        return [f"{name} is missing or empty" for name in missing]
    try:
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError):
        return [f"{NAME} is unreadable"]
    found = []
    for name, size in content["files"].items():
        path = folder / name
        if not path.exists():
            found.append(f"{name} is missing")
        elif path.stat().st_size != size:
            found.append(f"{name} has {path.stat().st_size} bytes instead of {size}")
    return found
