"""What IndexedWriter writes, megatron-core's own reader reads."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.storage.indexed import IndexedWriter, check_indexed, token_dtype
from mindspeed_llm.data.storage.stored import merge_indexed


def indexed_dataset(prefix: Path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    return IndexedDataset(str(prefix))


def write(prefix: Path, documents: list[list[int]], dtype: type = np.uint16) -> Path:
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for start in range(0, len(documents), 3):
            part = documents[start : start + 3]
            ids = np.concatenate([np.asarray(one, dtype=np.int64) for one in part])
            writer.add(ids, np.array([len(one) for one in part]))
        writer.commit()
    return prefix


def test_megatron_reads_the_same_documents(tmp_path: Path) -> None:
    documents = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [65499]]
    for dtype in (np.uint16, np.int32):
        prefix = write(tmp_path / "deep" / dtype.__name__, documents, dtype)
        data = indexed_dataset(prefix)
        assert [one.tolist() for one in data[: len(data)]] == documents
        assert data.index.dtype is dtype
        assert data.document_indices.tolist() == [0, 1, 2, 3, 4, 5]
        check_indexed(prefix)


def test_the_bytes_are_those_of_megatrons_own_writer(tmp_path: Path) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    builder.add_document(torch.tensor([1, 2, 3, 4, 5]), [2, 3])
    builder.add_document(torch.tensor([6]), [1])
    builder.add_document(torch.tensor([7, 8]), [1, 1])
    builder.finalize(str(tmp_path / "theirs.idx"))
    with IndexedWriter(tmp_path / "ours", np.dtype(np.uint16)) as writer:
        writer.add(np.array([1, 2, 3, 4, 5]), np.array([2, 3]), np.array([2]))
        writer.add(np.array([6]), np.array([1]))
        writer.add(np.array([7, 8]), np.array([1, 1]), np.array([2]))
        writer.commit()
    for end in (".bin", ".idx"):
        assert (tmp_path / f"ours{end}").read_bytes() == (tmp_path / f"theirs{end}").read_bytes()


def test_ids_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    for ids, dtype in (([65536], np.uint16), ([-1], np.uint16), ([2**31], np.int32)):
        with pytest.raises(ValueError, match="do not fit"):
            write(tmp_path / "x", [ids], dtype)
    assert list(tmp_path.iterdir()) == []


def test_no_token_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(UserError, match="no token"),
        IndexedWriter(tmp_path / "x", token_dtype(100)) as writer,
    ):
        writer.commit()
    assert list(tmp_path.iterdir()) == []


def test_two_runs_on_one_prefix_exclude_each_other(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "x", token_dtype(100)) as first:
        first.add(np.array([1]), np.array([1]))
        with pytest.raises(UserError, match="another run"):
            IndexedWriter(tmp_path / "x", token_dtype(100))
        first.commit()
    assert check_indexed(tmp_path / "x").sequences == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="no permission"):
        IndexedWriter(tmp_path / "x", token_dtype(100))


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        IndexedWriter(tmp_path / "file" / "x", token_dtype(100))


def test_memory_of_the_index_is_a_few_bytes_a_document(tmp_path: Path) -> None:
    """DATA-07: 8 to 12 bytes a document at most, also while the index is written."""
    batch = 100_000
    ids = np.ones(batch, dtype=np.uint16)
    lengths = np.ones(batch, dtype=np.int64)
    with IndexedWriter(tmp_path / "x", np.dtype(np.uint16)) as writer:
        tracemalloc.start()
        for _ in range(40):
            writer.add(ids, lengths)
        writer.commit()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert writer.documents == 4_000_000
    assert peak / writer.documents < 10


def test_merging_differing_types_is_refused(tmp_path: Path) -> None:
    parts = [write(tmp_path / "a", [[1]], np.uint16), write(tmp_path / "b", [[1]], np.int32)]
    with pytest.raises(UserError, match="different token types"):
        merge_indexed(parts, tmp_path / "ab")
