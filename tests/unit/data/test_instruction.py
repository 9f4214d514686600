"""Rows of instruction data to batches: order, shift, padding, boundaries, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.datasets.build import build_datasets, collator
from mindspeed_llm.data.datasets.collate import Collator, Sample
from mindspeed_llm.data.datasets.instruction import InstructionDataset, Rows
from mindspeed_llm.data.datasets.loader import build_dataloader
from mindspeed_llm.data.storage.parts import INSTRUCTION, PAIRWISE, Parts
from mindspeed_llm.data.tokenizer import NullTokenizer
from mindspeed_llm.flags.data import DataFlags
from tests.instruction_data import (
    IGNORE,
    pack,
    sample,
    samples,
    write,
    write_keys,
    write_pairs,
)

TOKENIZER = NullTokenizer(131)


def build(flags: DataFlags, counts=(20, 0, 0), length: int = 64, **more):
    return build_datasets(flags, counts, TOKENIZER, seq_length=length, seed=3, **more)


def instruction(*paths, **more) -> DataFlags:
    more = {"split": "100,0,0", **more}
    return DataFlags(
        data_path=tuple(str(path) for path in paths), is_instruction_dataset=True, **more
    )


def firsts(dataset) -> list[int]:
    """The first token of every sample, which tells it from others."""
    return [int(dataset[number].tokens[0]) for number in range(len(dataset))]


@pytest.fixture
def numbered(tmp_path: Path):
    """``numbered(name, count, start)``: data whose row n begins with the token start + n."""

    def make(name: str, count: int, start: int = 0) -> Path:
        rows = [sample([start + n, 120], [100 + n % 20]) for n in range(count)]
        return write(tmp_path / name, rows)

    return make


def test_a_batch_by_hand():
    """Shifted labels, padding, and nothing trained across the end of a sample."""
    one = Sample(np.array([1, 2, 3]), np.array([IGNORE, 2, 3]), np.array([1, 1, 1]))
    row = Sample(
        np.array([4, 5, 6, 7, 0]),
        np.array([IGNORE, 5, 6, 7, IGNORE]),
        np.array([1, 1, 2, 2, 0]),
    )
    plain = Collator(seq_length=6)([one, row])
    assert plain["tokens"].tolist() == [[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 0, 0]]
    assert plain["labels"].tolist() == [[2, 3, 0, 0, 0, 0], [5, 6, 7, 0, 0, 0]]
    assert plain["loss_mask"].tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]]
    assert plain["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert "segments" not in plain
    packed = Collator(seq_length=6, multiple_of=1, packed=True)([one, row])
    assert packed["tokens"].shape == (2, 5)
    # Nothing is asked of the 5: the 6 that follows begins another sample.
    assert packed["loss_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 0, 1, 0, 0]]
    assert packed["segments"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 2, 2, 0]]
    assert packed["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 0]]


@pytest.mark.parametrize(
    "longest, multiple, padded", [(7, 1, 7), (7, 2, 8), (13, 8, 16), (63, 8, 64)]
)
def test_train_09_length_of_a_dynamic_batch(longest, multiple, padded):
    """TRAIN-09: the longest sample, rounded up, and never beyond --seq-length."""
    rows = [Sample(np.zeros(size, int), np.zeros(size, int)) for size in (3, longest)]
    assert Collator(64, multiple)(rows)["tokens"].shape == (2, padded)
    flags = instruction("x", no_pad_to_seq_lengths=True, pad_to_multiple_of=6)
    made = collator(flags, TOKENIZER, 64, 4)
    assert made.multiple_of == 12


def test_every_pass_is_complete_and_in_an_order_of_its_own(numbered):
    data = numbered("a", 10)
    found = firsts(build(instruction(data), (30, 0, 0))[0])
    passes = [found[start : start + 10] for start in (0, 10, 20)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert found == firsts(build(instruction(data), (30, 0, 0))[0])
    kept = firsts(build(instruction(data, no_shuffle=True), (30, 0, 0))[0])
    assert kept == [*range(10)] * 3
    mixed = firsts(build(instruction(data, full_shuffle_instruction_dataset=True), (30, 0, 0))[0])
    assert sorted(mixed) == sorted([*range(10)] * 3)
    assert any(sorted(mixed[start : start + 10]) != [*range(10)] for start in (0, 10, 20))


def test_a_longer_run_begins_as_a_shorter_one(numbered):
    data = numbered("a", 10)
    short, long = (firsts(build(instruction(data), (n, 0, 0))[0]) for n in (13, 40))
    assert long[:13] == short


def test_padded_passes(numbered):
    data = numbered("a", 10)
    flags = instruction(data, padded_samples=True)
    found = firsts(build(flags, (24, 0, 0), global_batch_size=4)[0])
    assert sorted(found[:10]) == [*range(10)] and found[10:12] == found[:2]
    assert sorted(found[12:22]) == [*range(10)] and found[22:] == found[12:14]


def test_several_data_sets(numbered):
    """Without weights every row comes once a pass; with weights each gives its share."""
    a, b = numbered("a", 8), numbered("b", 4, 50)
    assert sorted(firsts(build(instruction(a, b), (12, 0, 0))[0])) == [*range(8), *range(50, 54)]
    found = firsts(build(instruction("1", a, "3", b), (40, 0, 0))[0])
    of_b = [token for token in found if token >= 50]
    assert len(of_b) == 30
    assert all(sorted(of_b[start : start + 4]) == [*range(50, 54)] for start in range(0, 28, 4))
    for n in range(1, 41):
        assert abs(sum(token >= 50 for token in found[:n]) - 0.75 * n) <= 1


def test_splits_do_not_overlap(numbered):
    data = numbered("a", 20)
    train, valid, test = build(instruction(data, split="80,15,5"), (16, 3, 1))
    assert sorted(firsts(train)) == [*range(16)]
    assert sorted(firsts(valid)) == [16, 17, 18]
    assert firsts(test) == [19]
    with pytest.raises(UserError, match=r"the valid share of .*a is empty: 20 rows"):
        build(instruction(data, split="99,1,0"), (16, 3, 0))
    own = DataFlags(
        train_data_path=(str(data),), valid_data_path=(str(data),), is_instruction_dataset=True
    )
    train, valid, test = build(own, (20, 20, 0))
    assert sorted(firsts(train)) == sorted(firsts(valid)) == [*range(20)] and test is None


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_share_the_samples_of_a_global_batch(numbered, size):
    """The same samples in each global batch at any number of ranks, from any sample on."""
    flags = instruction(numbered("a", 10))
    dataset, collate = build(flags, (40, 0, 0))[0], collator(flags, TOKENIZER, 64, 1)
    for consumed in (0, 12):
        loaders = [
            build_dataloader(dataset, consumed, 1, rank, size, collate_fn=collate)
            for rank in range(size)
        ]
        found = [[int(batch["tokens"][0, 0]) for batch in loader] for loader in loaders]
        merged = [token for group in zip(*found, strict=True) for token in group]
        assert merged == firsts(dataset)[consumed:]


def test_pairs(tmp_path):
    """The chosen answers come first, then the rejected ones, all of one length."""
    pairs = [
        (sample([1, 2], [3, 3]), sample([1, 2], [4])),
        (sample([5], [6]), sample([5], [7, 7, 7, 7])),
    ]
    data = write_pairs(tmp_path / "pairs", pairs)
    flags = DataFlags(
        data_path=(str(data),),
        is_pairwise_dataset=True,
        split="1,0,0",
        no_shuffle=True,
        no_pad_to_seq_lengths=True,
        pad_to_multiple_of=1,
    )
    dataset = build(flags, (2, 0, 0))[0]
    batch = collator(flags, TOKENIZER, 64, 1)([dataset[0], dataset[1]])
    assert batch["tokens"].tolist() == [
        [1, 2, 3, 3, 0],
        [5, 6, 0, 0, 0],
        [1, 2, 4, 0, 0],
        [5, 7, 7, 7, 7],
    ]
    assert batch["loss_mask"].sum(1).tolist() == [2, 1, 1, 4]
    assert Parts(str(data), PAIRWISE).lengths.tolist() == [4, 5]


def test_rows_longer_than_the_run_allows(numbered, tmp_path):
    data = write(tmp_path / "long", [sample([1, 2], [3] * 30), sample([1], [2])])
    with pytest.raises(UserError, match=r"1 of 2 rows are longer .* 16 .*has 32 tokens"):
        build(instruction(data), length=16)
    cut = build(instruction(data, cut_max_seqlen=True, no_shuffle=True), length=16)[0]
    assert [len(cut[n].tokens) for n in range(2)] == [16, 2]


def test_pack_01_packed_rows_need_their_samples_apart(tmp_path):
    """PACK-01: the data says that rows hold several samples, and the flags do not."""
    data = write(tmp_path / "packed", pack(samples(9), 64))
    with pytest.raises(UserError, match="would see each other: add --reset-attention-mask"):
        build(instruction(data))
    assert build(instruction(data, reset_attention_mask=True))[0] is not None


def test_pack_01_rows_without_numbers_are_warned_of(numbered, capsys):
    """PACK-01: --neat-pack in training, but not when the data was made."""
    build(instruction(numbered("a", 4), neat_pack=True, reset_attention_mask=True))
    assert "does not say where samples in a row begin" in capsys.readouterr().err


def missing_part(folder: Path) -> Path:
    prefix = write(folder / "half", samples(3))
    (folder / "half_packed_labels_document.idx").unlink()
    return prefix


def of_different_runs(folder: Path) -> Path:
    prefix = write(folder / "mixed", samples(3))
    columns = {"labels": [[1, 2], [3], [4]]}
    return write_keys(prefix, columns)


def several_sequences_a_document(folder: Path) -> Path:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for key in ("input_ids", "labels", "attention_mask"):
        path = folder / f"odd_packed_{key}_document"
        builder = IndexedDatasetBuilder(f"{path}.bin", dtype=np.int32)
        for _ in range(2):
            builder.add_item(torch.tensor([1, 2]))
        builder.end_document()
        builder.finalize(f"{path}.idx")
    return folder / "odd"


def sixteen_bits(folder: Path) -> Path:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix = write(folder / "narrow", samples(1))
    path = f"{prefix}_packed_input_ids_document"
    builder = IndexedDatasetBuilder(f"{path}.bin", dtype=np.uint16)
    builder.add_item(torch.tensor([1, 2]))
    builder.end_document()
    builder.finalize(f"{path}.idx")
    return prefix


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda f: f / "nowhere" / "x", "There is no folder"),
        (lambda f: f / "x", "holds no data set"),
        (lambda f: write(f / "alpaca", samples(2)).with_name("alpacca"), "Did you mean .*alpaca?"),
        (lambda f: write(f / "alpaca", samples(2)).with_name("zzz"), "Of this kind there are"),
        (
            lambda f: Path(f"{write(f / 'a', samples(2))}_packed_input_ids_document"),
            "Give the part of the name before _packed_: .*/a",
        ),
        (
            lambda f: write_keys(f / "b", {"text": [[1, 2]]}).with_name("b"),
            "holds no instruction data .*but: b_packed_text_document",
        ),
        (missing_part, "half_packed_labels_document.idx is missing beside"),
        (of_different_runs, "labels are not as long as those of input_ids"),
        (several_sequences_a_document, "2 sequences in 1 documents"),
        (sixteen_bits, "holds uint16; instruction data is int32"),
    ],
)
def test_data_that_is_not_there_or_not_whole(tmp_path, make, message):
    """The error says what is there instead (an unknown prefix was an IndexError once)."""
    with pytest.raises(UserError, match=message):
        build(instruction(make(tmp_path)))


def test_place_names_the_data_set_and_the_row(numbered):
    """Rows of a split are numbered within it."""
    parts = Parts(str(numbered("a", 3)), INSTRUCTION)
    rows = [Rows(parts, 0, 2), Rows(parts, 2, 3)]
    dataset = InstructionDataset(rows, None, 4, seq_length=8, shuffle=False)
    assert [dataset.place(n) for n in range(4)] == [(0, 0), (0, 1), (1, 0), (0, 0)]
    assert firsts(dataset) == [0, 1, 2, 0]
