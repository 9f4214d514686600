"""Names in a Megatron checkpoint folder, its pointer file, and which iterations are complete.

::

    ROOT/latest_checkpointed_iteration.txt     "100", or "release"
    ROOT/iter_0000100/mp_rank_00/model_optim_rng.pt          format torch, TP only
    ROOT/iter_0000100/mp_rank_00_000/model_optim_rng.pt      format torch, TP and PP, or TP and EP
    ROOT/iter_0000100/mp_rank_00_000_000/model_optim_rng.pt  format torch, TP, PP and EP
    ROOT/iter_0000100/{.metadata,common.pt,*.distcp}         format torch_dist
    ROOT/hf_files/                             config.json, tokenizer (ours)
"""

from __future__ import annotations

import argparse
import itertools
import re
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Literal

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.safe_load import load_file
from mindspeed_llm.files import write_text_atomically

POINTER = "latest_checkpointed_iteration.txt"
RANK_FILE = "model_optim_rng.pt"
HF_FILES = "hf_files"
RELEASE: Literal["release"] = "release"

Iteration = int | Literal["release"]

_ITERATION_FOLDER = re.compile(r"iter_(\d{7,})$")
_RANK_FOLDER = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?$")


def iteration_folder(root: Path | str, iteration: Iteration) -> Path:
    """Folder of one iteration (it need not exist)."""
    name = RELEASE if iteration == RELEASE else f"iter_{iteration:07d}"
    return Path(root) / name


@dataclass(frozen=True)
class RankGrid:
    """Sizes of the parallel groups that share a checkpoint, and the files that follow from them."""

    tensor: int
    pipeline: int
    expert: int = 1
    expert_tensor: int = 1

    @classmethod
    def of_args(cls, args: argparse.Namespace) -> RankGrid:
        """The sizes in a checkpoint's ``args``."""
        values = vars(args)
        tensor = values.get("tensor_model_parallel_size") or 1
        experts = bool(values.get("num_experts"))
        return cls(
            tensor,
            values.get("pipeline_model_parallel_size") or 1,
            (experts and values.get("expert_model_parallel_size")) or 1,
            (experts and values.get("expert_tensor_parallel_size")) or tensor,
        )

    def pairs(self) -> list[tuple[int, int]]:
        """(tensor rank, expert rank) of the ranks of one stage that hold different weights.

        In the order of the processes that are the first to hold them.

        Megatron lays both groupings over the same processes, counted from 0: tensor ranks come
        round every ``tensor`` processes, expert ranks every ``expert_tensor * expert``. With
        expert tensor parallelism smaller than the other layers', some pairs therefore never
        occur; a rank file exists for each pair that does.
        """
        pairs = (self._pair(process) for process in range(self.period))
        return list(dict.fromkeys(pairs))

    def _pair(self, process: int) -> tuple[int, int]:
        return process % self.tensor, process // self.expert_tensor % self.expert

    @property
    def period(self) -> int:
        """Processes of a stage after which all comes round."""
        return lcm(self.tensor, self.expert_tensor * self.expert)

    def copy_of(self, process: int) -> int:
        """How many processes of a stage before this one have the same rank file."""
        pair = self._pair(process)
        return sum(self._pair(other) == pair for other in range(process))

    def folder(self, tensor_rank: int, stage: int, expert_rank: int = 0) -> str:
        """Name of one rank's folder within an iteration."""
        return rank_folder(tensor_rank, stage, self.pipeline, expert_rank, self.expert)

    def folders(self) -> set[str]:
        """Names of all rank folders."""
        return {
            self.folder(tensor, stage, expert)
            for stage in range(self.pipeline)
            for tensor, expert in self.pairs()
        }


def rank_folder(
    tensor_rank: int,
    pipeline_rank: int,
    pipeline_parallel: int,
    expert_rank: int = 0,
    expert_parallel: int = 1,
) -> str:
    """Name of one rank's folder within an iteration."""
    stage = f"_{pipeline_rank:03d}" if pipeline_parallel > 1 else ""
    expert = f"_{expert_rank:03d}" if expert_parallel > 1 else ""
    return f"mp_rank_{tensor_rank:02d}{stage}{expert}"


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


def rank_folders(folder: Path) -> list[str]:
    """Names of the rank folders in an iteration folder, that of the first rank first."""
    return sorted(path.name for path in folder.iterdir() if _RANK_FOLDER.match(path.name))


def first_rank_file(folder: Path) -> Path:
    """The file of the first rank of an iteration in format torch (it need not exist)."""
    return folder / next(iter(rank_folders(folder)), rank_folder(0, 0, 1)) / RANK_FILE


def _expected_rank_folders(folder: Path) -> set[str]:
    """The rank folders that should be there, going by the names of those that are.

    Names alone do not tell where expert parallelism leaves some out; then ``args`` decide.
    """
    present = rank_folders(folder)
    if not present:
        return {rank_folder(0, 0, 1)}
    numbers = [name.removeprefix("mp_rank_").split("_") for name in present]
    columns = itertools.zip_longest(*numbers, fillvalue="0")
    spans = [range(max(int(n) for n in column) + 1) for column in columns]
    full = {
        "mp_rank_" + "_".join(f"{n:0{2 if i == 0 else 3}d}" for i, n in enumerate(ranks))
        for ranks in itertools.product(*spans)
    }
    if full == set(present):
        return full
    try:
        return RankGrid.of_args(load_file(first_rank_file(folder))["args"]).folders()
    except (UserError, KeyError, TypeError):
        return full


def missing_parts(folder: Path) -> list[str]:
    """What an iteration folder lacks to be complete, by file name; empty if nothing."""
    if not folder.is_dir():
        return [folder.name]
    if is_torch_dist(folder):
        needed = [folder / ".metadata", folder / "common.pt"]
    else:
        needed = [folder / name / RANK_FILE for name in sorted(_expected_rank_folders(folder))]
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
