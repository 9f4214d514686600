"""CKPT-01 and CKPT-02: which checkpoint a run starts from, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.flags import parse
from mindspeed_llm.training.checkpointing import manifest
from mindspeed_llm.training.checkpointing.start import Start, choose_start

BASE = ["--seq-length", "8", "--train-iters", "10", "--lr", "1e-3", "--mock-data"]


def write_iteration(root: Path, iteration: int, ranks: int = 2) -> Path:
    """An iteration folder as a two-rank run leaves it (the tensors do not matter here)."""
    folder = paths.iteration_folder(root, iteration)
    for rank in range(ranks):
        file = folder / paths.rank_folder(rank, 0, 1) / paths.RANK_FILE
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * (100 + rank))
    manifest.write(folder, iteration, "torch")
    return folder


@pytest.fixture
def root(tmp_path) -> Path:
    for iteration in (2, 4):
        write_iteration(tmp_path, iteration)
    paths.write_pointer(tmp_path, 4)
    return tmp_path


def start(*flags: object) -> Start:
    saving = ("--save-interval", 5) if "--save" in flags else ()
    return choose_start(parse("pretrain", [*BASE, *map(str, flags), *map(str, saving)]))


def test_the_pointer_decides(root):
    paths.write_pointer(root, 2)
    assert start("--load", root).iteration == 2


def test_blanks_around_the_pointer_do_not_matter(root):
    (root / paths.POINTER).write_text("  4 \n\n")
    assert start("--load", root).iteration == 4


def lose_a_file(root: Path) -> None:
    """A rank file is missing: killed between the files of two ranks by another tool."""
    (paths.iteration_folder(root, 4) / "mp_rank_01" / paths.RANK_FILE).unlink()


def truncate(root: Path) -> None:
    file = paths.iteration_folder(root, 4) / "mp_rank_01" / paths.RANK_FILE
    file.write_bytes(file.read_bytes()[:50])


def empty_pointer(root: Path) -> None:
    (root / paths.POINTER).write_text("")
    truncate(root)


def pointer_to_nothing(root: Path) -> None:
    paths.write_pointer(root, 6)
    truncate(root)


@pytest.mark.parametrize("spoil", [lose_a_file, truncate, empty_pointer, pointer_to_nothing])
def test_the_newest_complete_iteration_is_used_and_said(root, spoil):
    spoil(root)
    chosen = start("--load", root)
    assert chosen.iteration == 2
    said = "\n".join(chosen.notes)
    assert "iteration 4" in said and "using the newest complete iteration: 2" in said


def test_a_pointer_that_is_empty_falls_back_to_what_is_whole(root):
    (root / paths.POINTER).write_text("")
    chosen = start("--load", root)
    assert chosen.iteration == 4
    assert any("latest_checkpointed_iteration" in note for note in chosen.notes)


def test_leftovers_of_a_killed_save_are_not_taken(root):
    (root / ".iter_0000006.partial").mkdir()
    assert start("--load", root).iteration == 4


def test_all_incomplete_is_an_error(root):
    for iteration in (2, 4):
        (paths.iteration_folder(root, iteration) / "mp_rank_00" / paths.RANK_FILE).unlink()
    with pytest.raises(UserError, match=r"no usable checkpoint.*incomplete"):
        start("--load", root)


def test_load_of_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        start("--load", tmp_path / "nowhere")


def test_load_of_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"neither config\.json"):
        start("--load", tmp_path)


def test_load_of_a_pointer_alone_is_an_error(tmp_path):
    (tmp_path / paths.POINTER).write_text("10")
    with pytest.raises(UserError, match="names iteration 10, which is not there"):
        start("--load", tmp_path)


def test_auto_resume_starts_from_scratch_only_while_save_is_empty(tmp_path):
    flags = ("--load", tmp_path, "--save", tmp_path, "--auto-resume")
    assert start(*flags).root is None
    write_iteration(tmp_path, 5)
    paths.write_pointer(tmp_path, 5)
    assert start(*flags).iteration == 5


def test_a_newer_checkpoint_in_save_is_pointed_out(root, tmp_path_factory):
    save = tmp_path_factory.mktemp("save")
    write_iteration(save, 8)
    paths.write_pointer(save, 8)
    chosen = start("--load", root, "--save", save)
    assert chosen.iteration == 4 and chosen.root == root
    assert any("iteration 8" in note and "--auto-resume" in note for note in chosen.notes)
    assert start("--load", root, "--save", save, "--auto-resume").iteration == 8


def test_ckpt_step_is_taken_or_refused(root):
    assert start("--load", root, "--ckpt-step", 2).iteration == 2
    with pytest.raises(UserError, match="Iterations there: 2, 4"):
        start("--load", root, "--ckpt-step", 3)


def test_the_manifest_lists_every_file(root):
    folder = paths.iteration_folder(root, 4)
    files = json.loads((folder / manifest.NAME).read_text())["files"]
    assert files == {"mp_rank_00/model_optim_rng.pt": 100, "mp_rank_01/model_optim_rng.pt": 101}
