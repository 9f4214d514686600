"""Faults of indexed data sets: DATA-02 (width of ids), -05 (lengths), -07 (killed runs), -10."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.preprocess.command import PreprocessOptions, merge_groups, preprocess
from mindspeed_llm.data.storage.indexed import (
    HEADER,
    MAGIC,
    IndexedWriter,
    check_indexed,
    token_dtype,
)
from mindspeed_llm.data.storage.manifest import read_manifest
from mindspeed_llm.data.storage.stored import merge_indexed
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import small

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(small.with_bos())


def indexed_dataset(prefix: Path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    return IndexedDataset(str(prefix))


@pytest.mark.parametrize("vocab_size", [65499, 65500, 65535, 65536, 65537, 151_000])
def test_data_02_width_follows_the_largest_id(tmp_path: Path, vocab_size: int) -> None:
    from megatron.core.datasets.indexed_dataset import DType

    dtype = token_dtype(vocab_size)
    assert dtype == DType.optimal_dtype(vocab_size)
    ids = np.array([0, 1, vocab_size - 1])
    with IndexedWriter(tmp_path / "x", dtype) as writer:
        writer.add(ids, np.array([3]))
        writer.commit()
    data = indexed_dataset(tmp_path / "x")
    assert data.index.dtype == dtype
    assert data[0].tolist() == ids.tolist()
    assert (tmp_path / "x.bin").stat().st_size == 3 * dtype.itemsize


def test_data_02_added_tokens_count_and_may_cross_the_limit(tmp_path: Path) -> None:
    """A vocabulary of 600 with an added token of a far larger id: 32 bits, and no id wraps."""
    stored = json.loads((small.byte_level() / "tokenizer.json").read_text())
    far = {**stored["added_tokens"][0], "id": 70_000, "content": "<|far|>"}
    stored["added_tokens"].append(far)
    stored["model"]["vocab"]["<|far|>"] = 70_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    tokenizer = load_hf_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 70_001
    (tmp_path / "a.txt").write_text("here <|far|> there\n")
    options = PreprocessOptions(str(tmp_path / "a.txt"), str(tmp_path / "out"))
    prefix = preprocess(options, tokenizer).prefixes["text"]
    data = indexed_dataset(prefix)
    assert data.index.dtype is np.int32
    assert 70_000 in data[0].tolist()


@pytest.mark.parametrize("append_eod", [False, True])
def test_data_05_lengths_count_the_end_token(
    tmp_path: Path, tokenizer: Tokenizer, append_eod: bool
) -> None:
    texts = ["one", "two and more", "three\n\nlines of it"]
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    options = PreprocessOptions(str(source), str(tmp_path / "out"), append_eod=append_eod)
    prefix = preprocess(options, tokenizer).prefixes["text"]
    data = indexed_dataset(prefix)
    assert len(data) == len(texts)
    for text, ids in zip(texts, data[:3], strict=True):
        assert ids.tolist() == tokenizer.hf(text)["input_ids"] + [tokenizer.eod] * append_eod
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    size = Path(f"{prefix}.bin").stat().st_size
    assert int(data.sequence_lengths.sum()) * data.index.dtype().itemsize == size
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert manifest.eod == (tokenizer.eod if append_eod else None)
    assert (manifest.documents, manifest.tokens) == (3, int(data.sequence_lengths.sum()))


def endless(tmp_path: Path) -> tuple[Path, list[str]]:
    """A run that waits for ever in the middle of its input, and its command."""
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.txt").write_text("a line of text\n" * 400_000)
    os.mkfifo(tmp_path / "pipe")
    code = f"""
import pathlib, sys
from mindspeed_llm.data import readers
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
original = readers.READERS["txt"]
def slow(*arguments):
    for number, batch in enumerate(original(*arguments)):
        if number == 4:
            open({str(tmp_path / "pipe")!r}).read()
        yield batch
readers.READERS["txt"] = slow
tokenizer = load_hf_tokenizer(pathlib.Path({str(small.byte_level())!r}))
options = PreprocessOptions({str(source)!r}, {str(tmp_path / "out" / "x")!r})
readers.BATCH_BYTES = 1 << 20
preprocess(options, tokenizer)
"""
    return source, [sys.executable, "-c", code]


def test_data_07_a_killed_run_leaves_nothing_that_looks_complete(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    source, command = endless(tmp_path)
    partial = tmp_path / "out" / ".x_text_document.bin.partial"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 180
        while time.monotonic() < end and not (partial.exists() and partial.stat().st_size):
            assert process.poll() is None, f"the run ended by itself: {process.returncode}"
            time.sleep(0.05)
        assert partial.exists(), "the run did not begin to write within three minutes"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = [path.name for path in (tmp_path / "out").iterdir()]
    assert partial.name in left and all(name.endswith(".partial") for name in left)
    # A second run over the left-overs is complete.
    options = PreprocessOptions(str(source), str(tmp_path / "out" / "x"))
    summary = preprocess(options, tokenizer)
    assert summary.documents == 400_000
    assert len(indexed_dataset(summary.prefixes["text"])) == 400_000
    assert not list((tmp_path / "out").glob(".*.partial"))


def test_data_07_a_failed_rerun_keeps_the_data_set_before_it(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "good"}\n')
    options = PreprocessOptions(str(source), str(tmp_path / "out" / "x"))
    prefix = preprocess(options, tokenizer).prefixes["text"]
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    source.write_text('{"text": "better"}\n{"text": 1}\n')
    with pytest.raises(UserError):
        preprocess(options, tokenizer)
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    check_indexed(prefix)


def test_data_07_full_disk(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A limit on the size of files stands for a full disk: the write fails in the same way."""
    (tmp_path / "a.txt").write_text("a line of text\n" * 200_000)
    code = f"""
import pathlib, resource, signal
from mindspeed_llm.console import entry_point
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.tokenizer import load_hf_tokenizer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
tokenizer = load_hf_tokenizer(pathlib.Path({str(small.byte_level())!r}))
options = PreprocessOptions({str(tmp_path / "a.txt")!r}, {str(tmp_path / "out" / "x")!r})
entry_point(lambda argv: preprocess(options, tokenizer) and 0)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 2
    assert "the disk is full" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [-1, 1, -1000])
def test_data_07_data_that_does_not_fit_its_index_is_refused(tmp_path: Path, change: int) -> None:
    prefix = tmp_path / "x"
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        writer.add(np.arange(1000), np.array([400, 600]))
        writer.commit()
    check_indexed(prefix)
    data = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(data[:change] if change < 0 else data + b"\0")
    with pytest.raises(UserError) as caught:
        check_indexed(prefix)
    for name in ("x.bin", "x.idx", "2000"):
        assert name in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 33, 50])
def test_data_07_a_cut_index_is_refused(tmp_path: Path, keep: int) -> None:
    prefix = tmp_path / "x"
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        writer.add(np.arange(1000), np.array([400, 600]))
        writer.commit()
    index = tmp_path / "x.idx"
    index.write_bytes(index.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"x\.idx"):
        check_indexed(prefix)


def sparse(prefix: Path, lengths: list[int], dtype: np.dtype) -> Path:
    """A data set of long documents whose .bin is one hole."""
    sizes = np.array(lengths, dtype=np.int64)
    ends = np.cumsum(sizes) * dtype.itemsize
    code = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}[dtype]
    with open(f"{prefix}.idx", "wb") as index:
        index.write(HEADER.pack(MAGIC, 1, code, len(sizes), len(sizes) + 1))
        index.write(sizes.astype(np.int32).tobytes())
        index.write((ends - sizes * dtype.itemsize).tobytes())
        index.write(np.arange(len(sizes) + 1, dtype=np.int64).tobytes())
    with open(f"{prefix}.bin", "wb") as data:
        data.truncate(int(ends[-1]))
    return prefix


def test_data_10_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """Four documents of 2**30 tokens: byte offsets up to 2**34."""
    prefix = sparse(tmp_path / "x", [2**30] * 4, np.dtype(np.int32))
    with open(f"{prefix}.bin", "r+b") as data:
        data.seek(3 * 2**32 + 8)
        data.write(np.array([77], dtype=np.int32).tobytes())
    check_indexed(prefix)
    assert indexed_dataset(prefix).get(3, 2, 1).tolist() == [77]


def test_data_10_the_writer_counts_beyond_32_bits(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "x", np.dtype(np.int32)) as writer:
        writer.add(np.array([5]), np.array([1]))
        # As if two documents of 2**30 tokens had been written between the first and the last.
        writer._lengths.append(np.array([2**30, 2**30], dtype=np.int32))
        writer.sequences += 2
        writer.documents += 2
        writer.add(np.array([6]), np.array([1]))
        index = b"".join(writer._index_pieces())
    pointers = np.frombuffer(index, np.int64, 4, HEADER.size + 4 * 4)
    assert pointers.tolist() == [0, 4, 2**32 + 4, 2**33 + 4]


def test_data_10_epochs_times_tokens_beyond_32_bits(tmp_path: Path) -> None:
    """2**31 tokens an epoch, five epochs: no index is negative, no sample has another length."""
    from mindspeed_llm.data.datasets.build import build_datasets
    from mindspeed_llm.data.tokenizer import NullTokenizer
    from mindspeed_llm.flags.data import DataFlags

    prefix = sparse(tmp_path / "x", [2**29 - 1] * 4, np.dtype(np.uint16))
    flags = DataFlags(data_path=(str(prefix),), split="100,0,0")
    seq_length = 2**21
    needed = 5 * 2**31 // seq_length - 10
    train, _, _ = build_datasets(
        flags, (needed, 0, 0), NullTokenizer(100), seq_length=seq_length, seed=1
    )
    assert len(train) >= needed
    assert train.sample_index.min() >= 0
    assert len(train.document_index) == 20
    for index in (0, needed // 2, needed - 1):
        assert train[index]["tokens"].shape == (seq_length,)


def make(prefix: Path, documents: list[list[int]], dtype: type = np.uint16) -> Path:
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for one in documents:
            writer.add(np.array(one), np.array([len(one)]))
        writer.commit()
    return prefix


def test_data_10_a_merged_set_is_the_concatenation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [[[1, 2], [3]], [[4, 5, 6]], [[7], [8, 9], [10]]]
    prefixes = [make(tmp_path / f"p{i}", part) for i, part in enumerate(parts)]
    for tokens in (1, 3, 1 << 20):
        monkeypatch.setattr("mindspeed_llm.data.storage.stored.MERGE_TOKENS", tokens)
        merge_indexed(prefixes, tmp_path / "merged")
        data = indexed_dataset(tmp_path / "merged")
        assert [one.tolist() for one in data[: len(data)]] == list(chain.from_iterable(parts))
        assert data.document_indices.tolist() == list(range(7))


def test_data_10_merging_keeps_documents_of_several_sequences(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with IndexedWriter(tmp_path / name, np.dtype(np.uint16)) as writer:
            writer.add(np.arange(6), np.array([1, 2, 3]), np.array([2, 1]))
            writer.commit()
    merge_indexed([tmp_path / "a", tmp_path / "b"], tmp_path / "ab")
    data = indexed_dataset(tmp_path / "ab")
    assert data.document_indices.tolist() == [0, 2, 3, 5, 6]
    assert data.sequence_lengths.tolist() == [1, 2, 3, 1, 2, 3]


def test_data_10_merging_by_group_keys(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "parts"
    for number in (1, 2):
        source = tmp_path / f"{number}.jsonl"
        source.write_text(json.dumps({"text": f"text {number}", "title": f"title {number}"}))
        options = PreprocessOptions(
            str(source), str(folder / f"part{number}"), json_keys=("text", "title")
        )
        preprocess(options, tokenizer)
    merged = merge_groups(folder, str(tmp_path / "all"), ["text_document", "title_document"])
    for key in ("text", "title"):
        prefix = merged[f"{key}_document"]
        data = indexed_dataset(prefix)
        texts = [tokenizer.decode(one, skip_special_tokens=True) for one in data[:2]]
        assert texts == [f"{key} 1", f"{key} 2"]
        manifest = read_manifest(prefix)
        assert manifest is not None
        assert manifest.documents == 2
        assert len(manifest.inputs) == 2
    with pytest.raises(UserError, match="there are: part1_text_document"):
        merge_groups(folder, str(tmp_path / "all"), ["body"])
