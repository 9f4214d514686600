"""Names in a Megatron checkpoint folder, its pointer file, and which iterations are complete.

::

    ROOT/latest_checkpointed_iteration.txt     "100", or "release"
    ROOT/iter_0000100/mp_rank_00/model_optim_rng.pt          format torch, TP only
    ROOT/iter_0000100/mp_rank_00_000/model_optim_rng.pt      format torch, TP and PP
    ROOT/iter_0000100/{.metadata,common.pt,*.distcp}         format torch_dist
    ROOT/hf_files/                             config.json, tokenizer (ours)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from mindspeed.errors import UserError
from mindspeed_llm.files import write_text_atomically

POINTER = "latest_checkpointed_iteration.txt"
RANK_FILE = "model_optim_rng.pt"
HF_FILES = "hf_files"
RELEASE: Literal["release"] = "release"

Iteration = int | Literal["release"]

_ITERATION_FOLDER = re.compile(r"iter_(\d{7,})$")
_RANK_FOLDER = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?$")


def iteration_folder(root: Path | str, iteration: Iteration) -> Path:
    """Folder of one iteration (it need not exist)."""
    name = RELEASE if iteration == RELEASE else f"iter_{iteration:07d}"
    return Path(root) / name


def rank_folder(tensor_rank: int, pipeline_rank: int, pipeline_parallel: int) -> str:
    """Name of one rank's folder within an iteration."""
    suffix = f"_{pipeline_rank:03d}" if pipeline_parallel > 1 else ""
    return f"mp_rank_{tensor_rank:02d}{suffix}"


def read_pointer(root: Path | str) -> Iteration | None:
    """The iteration that the pointer file names; None without a pointer file.

    Blanks and newlines around the number are tolerated.

    Raises:
        UserError: if the file holds anything but a number or "release".
    """
    path = Path(root) / POINTER
    try:
        text = path.read_bytes().decode("utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if text == RELEASE:
        return RELEASE
    if text.isascii() and text.isdigit():
        return int(text)
    present = ", ".join(str(i) for i in iterations(root)) or "none"
    raise UserError(
        f"{path} holds {text[:40]!r}, not an iteration number or 'release'. Iterations in this "
        f"folder: {present}; write the one to use into the file"
    )


def write_pointer(root: Path | str, iteration: Iteration) -> None:
    """Let the pointer file name ``iteration``, in one step. Do this last."""
    write_text_atomically(Path(root) / POINTER, str(iteration))


def iterations(root: Path | str) -> list[Iteration]:
    """Iterations that have a folder, oldest first, "release" before all."""
    root = Path(root)
    if not root.is_dir():
        return []
    found = sorted(
        int(m[1]) for path in root.iterdir() if (m := _ITERATION_FOLDER.match(path.name))
    )
    release: list[Iteration] = [RELEASE] if (root / RELEASE).is_dir() else []
    return [*release, *found]


def complete_iterations(root: Path | str) -> list[Iteration]:
    """Those of :func:`iterations` whose files are all there."""
    return [i for i in iterations(root) if not missing_parts(iteration_folder(root, i))]


def is_torch_dist(folder: Path) -> bool:
    """Whether an iteration folder is in format torch_dist rather than torch."""
    return (folder / ".metadata").exists() or (folder / "metadata.json").exists()


def rank_grid(folder: Path) -> tuple[int, int]:
    """(tensor-parallel size, pipeline-parallel size) that the rank folders' names span.

    (0, 0) without rank folders.
    """
    ranks = [
        (int(m[1]), int(m[2] or 0)) for p in folder.iterdir() if (m := _RANK_FOLDER.match(p.name))
    ]
    if not ranks:
        return 0, 0
    return max(tp for tp, _ in ranks) + 1, max(pp for _, pp in ranks) + 1


def missing_parts(folder: Path) -> list[str]:
    """What an iteration folder lacks to be complete, by file name; empty if nothing."""
    if not folder.is_dir():
        return [folder.name]
    if is_torch_dist(folder):
        needed = [folder / ".metadata", folder / "common.pt"]
    else:
        tensor_parallel, pipeline_parallel = rank_grid(folder)
        needed = [
            folder / rank_folder(tp, pp, pipeline_parallel) / RANK_FILE
            for tp in range(tensor_parallel)
            for pp in range(pipeline_parallel)
        ] or [folder / rank_folder(0, 0, 1) / RANK_FILE]
    return [str(p.relative_to(folder)) for p in needed if not p.exists() or p.stat().st_size == 0]


def resolve(path: Path | str, iteration: Iteration | None = None) -> tuple[Path, Iteration]:
    """(root folder, iteration) to read from ``path``, a root or one iteration's own folder.

    Args:
        iteration: the wanted one; None: what the pointer names.

    Raises:
        UserError: if the pointer or the iteration is missing or incomplete, naming what is there.
    """
    path = Path(path)
    match = _ITERATION_FOLDER.match(path.name)
    if match and iteration is None:
        path, iteration = path.parent, int(match[1])
    elif iteration is None:
        iteration = read_pointer(path)
    if iteration is None:
        present = ", ".join(str(i) for i in iterations(path)) or "none"
        raise UserError(
            f"{path} has no {POINTER}, so which iteration to load is unknown (present: {present}); "
            "give the folder of one iteration, or write its number into that file"
        )
    missing = missing_parts(iteration_folder(path, iteration))
    if missing:
        complete = ", ".join(str(i) for i in complete_iterations(path)) or "none"
        raise UserError(
            f"iteration {iteration} in {path} is incomplete: {', '.join(missing[:5])} missing or "
            f"empty. Complete iterations there: {complete}"
        )
    return path, iteration
