"""DATA-09: sample indices where disks are not shared, builds are long, or files are left over."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from mindspeed_llm.data.storage.indexed import IndexedWriter

SEQ = 8


def make(prefix: Path, lengths: list[int], seed: int = 0) -> str:
    draw = np.random.default_rng(seed)
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        writer.add(draw.integers(0, 90, size=sum(lengths)), np.array(lengths))
        writer.commit()
    return str(prefix)


def build(words: list[str], cache: str | None, **flags):
    from mindspeed_llm.data.datasets.build import build_datasets
    from mindspeed_llm.data.tokenizer import NullTokenizer
    from mindspeed_llm.flags.data import DataFlags

    wanted = flags.pop("wanted", True)
    data = DataFlags(data_path=tuple(words), split="100,0,0", data_cache_path=cache, **flags)
    return build_datasets(
        data, (30, 0, 0), NullTokenizer(90), seq_length=SEQ, seed=3, wanted=wanted
    )[0]


def tokens(dataset) -> list[list[int]]:
    return [dataset[i]["tokens"].tolist() for i in range(30)]


def on_rank(rank: int, world: int, words: list[str], caches: list[str], **flags):
    """The samples that a rank sees, and how often it built rather than loaded."""
    from mindspeed_llm.data.datasets import index_cache

    built: list[str] = []
    original = index_cache.store_arrays

    def store(folder, name, *rest):
        built.append(name)
        original(folder, name, *rest)

    index_cache.store_arrays = store
    try:
        if "wanted" in flags:
            flags["wanted"] = flags["wanted"][rank]
        dataset = build(words, caches[rank], **flags)
    finally:
        index_cache.store_arrays = original
    return (None if dataset is None else tokens(dataset)), len(built)


def failing(rank: int, world: int, words: list[str], cache: str) -> str:
    """Rank 0 cannot store; every rank must hear of it."""
    from mindspeed.errors import UserError

    try:
        build(words, cache)
    except UserError as error:
        return str(error)
    return "no error"


def late(rank: int, world: int, words: list[str], cache: str) -> str:
    """Rank 0 builds for longer than the message waits; what rank 1 prints meanwhile."""
    import contextlib
    import io
    import time

    from mindspeed_llm.data.datasets import index_cache

    original = index_cache.store_arrays
    index_cache.MESSAGE_AFTER_SECONDS = 0.2
    os.environ["LOCAL_RANK"] = "0"

    def slow(*arguments):
        time.sleep(1.0)
        original(*arguments)

    index_cache.store_arrays = slow
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            build(words, cache)
    finally:
        index_cache.store_arrays = original
        index_cache.MESSAGE_AFTER_SECONDS = 10.0
        del os.environ["LOCAL_RANK"]
    return shown.getvalue()


def test_data_09_a_shared_folder_has_one_builder(pool, tmp_path: Path) -> None:
    words = ["1", make(tmp_path / "a", [20] * 30), "2", make(tmp_path / "b", [9] * 40)]
    cache = str(tmp_path / "cache")
    results = pool(2).run(on_rank, words=words, caches=[cache] * 2)
    assert results[0][0] == results[1][0]
    assert [built for _, built in results] == [3, 0]
    assert not list((tmp_path / "cache").glob(".*"))


def test_data_09_two_disks_have_a_builder_each(pool, tmp_path: Path) -> None:
    words = [make(tmp_path / "a", [20] * 30)]
    caches = [str(tmp_path / "node0"), str(tmp_path / "node1")]
    results = pool(2).run(on_rank, words=words, caches=caches)
    assert results[0][0] == results[1][0]
    assert [built for _, built in results] == [1, 1]


def test_data_09_a_rank_that_reads_no_data_does_not_build(pool, tmp_path: Path) -> None:
    words = [make(tmp_path / "a", [20] * 30)]
    cache = str(tmp_path / "cache")
    results = pool(2).run(on_rank, words=words, caches=[cache] * 2, wanted=[False, True])
    assert results[0] == (None, 0)
    assert results[1][1] == 1


def test_data_09_one_path_on_machines_that_share_nothing(pool, tmp_path: Path) -> None:
    """With --no-shared-storage each machine (here both ranks are one) has its own builder."""
    words = [make(tmp_path / "a", [20] * 30)]
    cache = str(tmp_path / "cache")
    results = pool(2).run(on_rank, words=words, caches=[cache] * 2, no_shared_storage=True)
    assert results[0][0] == results[1][0]
    assert [built for _, built in results] == [1, 0]


def test_data_09_an_error_of_the_builder_reaches_every_rank(pool, tmp_path: Path) -> None:
    words = [make(tmp_path / "a", [20] * 30)]
    (tmp_path / "cache").write_text("a file where the folder should be")
    messages = pool(2).run(failing, words=words, cache=str(tmp_path / "cache"))
    assert all("--data-cache-path" in message for message in messages)


def test_data_09_who_waits_says_so(pool, tmp_path: Path) -> None:
    words = [make(tmp_path / "a", [20] * 30)]
    shown = pool(2).run(late, words=words, cache=str(tmp_path / "cache"))
    assert "waiting for rank 0 to build" in shown[1]
    assert "for up to 30 minutes" in shown[1]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "no description"])
def test_data_09_left_over_half_written_files_are_built_anew(tmp_path: Path, damage: str) -> None:
    words = [make(tmp_path / "a", [20] * 30)]
    cache = tmp_path / "cache"
    expected = tokens(build(words, str(cache)))
    victim = next(cache.glob("*sample_index.npy"))
    whole = victim.read_bytes()
    if damage == "no description":
        next(cache.glob("*description.txt")).unlink()
    else:
        victim.write_bytes({"cut": whole[:-9], "empty": b"", "text": b"x" * 300}[damage])
    (cache / f".{victim.name}.partial").write_bytes(b"left over")
    assert tokens(build(words, str(cache))) == expected
    assert victim.read_bytes() == whole


def test_data_09_data_replaced_by_another_of_the_same_name(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    words = [make(tmp_path / "a", [20] * 30)]
    build(words, cache)
    # As many documents and tokens, cut otherwise: an old index would run over the ends.
    make(tmp_path / "a", [1, 39] * 15)
    fresh = tokens(build(words, str(tmp_path / "other")))
    assert tokens(build(words, cache)) == fresh


def test_data_09_read_only_data_with_a_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    words = [make(folder / "a", [20] * 30)]
    expected = tokens(build(words, str(tmp_path / "cache")))
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    # Root may write anywhere: the answer of the permission check is what a user would get.
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and real(path, mode))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert tokens(build(words, str(tmp_path / "cache"))) == expected
    assert tokens(build(words, None)) == expected
    assert "cannot be written: the sample indices go to" in capsys.readouterr().out
    assert list((tmp_path / "home").rglob("*.npy"))
    assert not list(folder.rglob("*.npy"))
    folder.chmod(0o700)
