"""The pointer file and what counts as a complete iteration."""

from __future__ import annotations

import pytest

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths


def make_iteration(root, iteration, ranks=("mp_rank_00",)) -> None:
    for rank in ranks:
        folder = paths.iteration_folder(root, iteration) / rank
        folder.mkdir(parents=True)
        (folder / paths.RANK_FILE).write_bytes(b"x")


@pytest.mark.parametrize(
    "text, value",
    [("1", 1), (" 100 \n", 100), ("release\n", "release"), ("0000005", 5)],
)
def test_pointer_is_read_with_blanks(text, value, tmp_path) -> None:
    (tmp_path / paths.POINTER).write_text(text)
    assert paths.read_pointer(tmp_path) == value


def test_pointer_written_reads_back_and_has_no_newline(tmp_path) -> None:
    assert paths.read_pointer(tmp_path) is None
    paths.write_pointer(tmp_path, 12)
    assert (tmp_path / paths.POINTER).read_bytes() == b"12"
    assert paths.read_pointer(tmp_path) == 12


@pytest.mark.parametrize("content", [b"", b"-1", b"1.5", b"latest", b"\xff\xfe", "٣".encode()])
def test_pointer_nonsense_is_named(content, tmp_path) -> None:
    (tmp_path / paths.POINTER).write_bytes(content)
    make_iteration(tmp_path, 3)
    with pytest.raises(UserError, match=r"latest_checkpointed_iteration\.txt holds .* folder: 3"):
        paths.read_pointer(tmp_path)


def test_folder_names() -> None:
    assert paths.iteration_folder("r", 1).name == "iter_0000001"
    assert paths.iteration_folder("r", 12345678).name == "iter_12345678"
    assert paths.iteration_folder("r", "release").name == "release"
    assert paths.rank_folder(3, 0, 1) == "mp_rank_03"
    assert paths.rank_folder(3, 12, 16) == "mp_rank_03_012"


def test_iterations_and_completeness(tmp_path) -> None:
    make_iteration(tmp_path, 20, ("mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_001"))
    make_iteration(tmp_path, 3)
    make_iteration(tmp_path, "release")
    (tmp_path / ".iter_0000030.partial").mkdir()
    (tmp_path / "iter_0000040").mkdir()
    assert paths.iterations(tmp_path) == ["release", 3, 20, 40]
    assert paths.complete_iterations(tmp_path) == ["release", 3]
    assert paths.missing_parts(tmp_path / "iter_0000020") == ["mp_rank_01_000/model_optim_rng.pt"]


def test_an_empty_rank_file_is_not_complete(tmp_path) -> None:
    make_iteration(tmp_path, 3)
    (tmp_path / "iter_0000003/mp_rank_00/model_optim_rng.pt").write_bytes(b"")
    assert paths.complete_iterations(tmp_path) == []


def test_resolve_takes_a_root_or_one_iteration(tmp_path) -> None:
    make_iteration(tmp_path, 3)
    make_iteration(tmp_path, 5)
    paths.write_pointer(tmp_path, 5)
    assert paths.resolve(tmp_path) == (tmp_path, 5)
    assert paths.resolve(tmp_path, 3) == (tmp_path, 3)
    assert paths.resolve(tmp_path / "iter_0000003") == (tmp_path, 3)
    with pytest.raises(UserError, match=r"iteration 4 .* Complete iterations there: 3, 5"):
        paths.resolve(tmp_path, 4)
