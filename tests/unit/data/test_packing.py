"""Rows hold every sample once, whole and apart; they are full; over-long samples have a rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed.errors import UserError
from mindspeed_llm.data.preprocess.command import PreprocessOptions, Summary, preprocess
from mindspeed_llm.data.preprocess.packing import Packer, Sample, best_fit, packed_row
from mindspeed_llm.data.preprocess.samples import Sizing, with_eod
from mindspeed_llm.data.templates import EncodedChats
from mindspeed_llm.data.tokenizer import Tokenizer, load_hf_tokenizer
from tests.data import chats


def sample(number: int, length: int) -> Sample:
    return Sample(np.full(length, number, dtype=np.int32), np.ones(length, dtype=bool))


def packed(lengths: list[int], capacity: int, window: int | None = None) -> tuple[Packer, list]:
    packer = Packer(capacity, window)
    rows = []
    for number, length in enumerate(lengths):
        rows += list(packer.add(sample(number, length)))
    rows += list(packer.finish())
    return packer, rows


@given(
    st.integers(1, 60).flatmap(
        lambda capacity: st.tuples(
            st.just(capacity), st.lists(st.integers(1, capacity), min_size=1, max_size=80)
        )
    ),
    st.integers(1, 300),
)
@settings(max_examples=150, deadline=None)
def test_every_sample_once_whole_and_in_rows_that_hold_them(
    given_lengths: tuple[int, list[int]], window: int
) -> None:
    capacity, lengths = given_lengths
    packer, rows = packed(lengths, capacity, window)
    numbers = [int(one.ids[0]) for row in rows for one in row]
    assert sorted(numbers) == list(range(len(lengths)))
    for row in rows:
        assert sum(len(one.ids) for one in row) <= capacity
        assert [int(one.ids[0]) for one in row] == sorted(int(one.ids[0]) for one in row)
    assert packer.tokens == sum(lengths) and packer.rows == len(rows)


def test_best_fit_by_hand() -> None:
    # The 7 and the 5 open rows; the 4 fits beside the 5 only, the 3 beside the 7; the 2 opens one.
    rows = best_fit([4, 7, 2, 5, 3], 10)
    assert rows == [[1, 4], [0, 3], [2]]
    assert best_fit([10, 10], 10) == [[0], [1]]
    assert best_fit([5, 5, 5, 5], 10) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("capacity", "scale"), [(4096, 5.6), (4096, 6.8), (32768, 7.5)])
def test_rows_are_98_percent_full_on_realistic_lengths(capacity: int, scale: float) -> None:
    """Log-normal lengths (medians 270, 900 and 1800 tokens), as published chat sets have them."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(scale, 1.0, 6_000).astype(int) + 8, 8, capacity).tolist()
    packer, rows = packed(lengths, capacity)
    assert packer.efficiency >= 0.98
    assert len(rows) <= sum(lengths) / capacity / 0.98 + 1


def test_the_window_bounds_what_waits() -> None:
    packer = Packer(100, 1000)
    most = 0
    for number in range(2000):
        for _ in packer.add(sample(number, 1 + number * 37 % 100)):
            pass
        most = max(most, packer._size)
    assert most < 1000


def test_a_row_numbers_its_samples_and_masks_their_first_tokens() -> None:
    row = packed_row([sample(7, 3), sample(8, 2)], 8, pad=9)
    assert row["input_ids"].tolist() == [7, 7, 7, 8, 8, 9, 9, 9]
    assert row["attention_mask"].tolist() == [1, 1, 1, 2, 2, 0, 0, 0]
    assert row["labels"].tolist() == [-100, 7, 7, -100, 8, -100, -100, -100]


def encoded(*rows: str) -> EncodedChats:
    """Samples written as e.g. "..aa.bb": dots are prompt, letters are trained answers."""
    ids = np.arange(10, 10 + sum(map(len, rows)), dtype=np.int32)
    spans, counts, start = [], [], 0
    for row in rows:
        found = []
        for letter in sorted(set(row) - {"."}):
            found.append((start + row.index(letter), start + row.rindex(letter) + 1))
        spans += found
        counts.append(len(found))
        start += len(row)
    trained = np.array([letter != "." for letter in "".join(rows)])
    return EncodedChats(
        ids,
        np.array([len(row) for row in rows]),
        trained,
        np.array(spans, dtype=np.int64).reshape(-1, 2),
        np.array(counts),
    )


def sized(sizing: Sizing, *rows: str) -> tuple[list[int], list[int], list[tuple[str, int]]]:
    counted: list[tuple[str, int]] = []
    result = sizing.apply(encoded(*rows), lambda why, number: counted.append((why, number)))
    assert result.lengths.sum() == result.ids.size == result.trained.size
    return result.lengths.tolist(), result.kept.tolist(), counted


def test_chat_05_over_long_samples_are_left_out_or_cut_after_a_whole_answer() -> None:
    rows = ("..aa.bb", ".aaaaaaa", "......aa", "..aa")
    dropped = sized(Sizing(seq_length=5), *rows)
    assert dropped == ([4], [3], [("longer than --seq-length", i) for i in range(3)])
    cut = sized(Sizing(seq_length=5, cut=True), *rows)
    assert cut[:2] == ([4, 5, 4], [0, 1, 3])
    assert cut[2] == [
        ("nothing to learn from", 2),
        ("cut after a whole answer", 0),
        ("cut inside an answer", 1),
    ]


def test_train_04_nothing_to_learn_from_is_left_out() -> None:
    assert sized(Sizing(), "....", "..a", "a", "a.") == (
        [3],
        [1],
        [("nothing to learn from", i) for i in (0, 2, 3)],
    )
    assert sized(Sizing(learn=False), "....")[:2] == ([4], [0])


def test_a_pair_stays_or_goes_together() -> None:
    lengths, kept, counted = sized(Sizing(seq_length=4, group=2), "..a", ".aaaa", "..a", "..aa")
    assert (lengths, kept, counted) == ([3, 4], [2, 3], [("longer than --seq-length", 0)])


def test_chat_05_an_end_token_belongs_to_whole_samples_only() -> None:
    rows = encoded("..aa.", "..bb")
    ended = with_eod(rows, 99)
    assert ended.ids.tolist() == [10, 11, 12, 13, 14, 99, 15, 16, 17, 18, 99]
    assert ended.trained.tolist() == [bool(int(c)) for c in "00110000111"]
    assert ended.spans.tolist() == [[2, 4], [8, 10]]
    assert with_eod(ended, 99).ids.tolist() == ended.ids.tolist()
    result = Sizing(eod=99, seq_length=3, cut=True).apply(rows, lambda *_: None)
    assert 99 not in result.ids


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_hf_tokenizer(chats.folder())


@pytest.fixture(autouse=True)
def one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    chats.keep_one_engine(monkeypatch)


def run(folder: Path, tokenizer: Tokenizer, name: str, **options: Any) -> Summary:
    draw = np.random.default_rng(0)
    rows = []
    for number in range(300):
        words = " ".join(["word"] * int(draw.integers(1, 30)))
        rows.append(chats.openai([("user", f"{number} {words}"), ("assistant", words)]))
    source = chats.write(folder / "a.jsonl", rows)
    return preprocess(
        PreprocessOptions(
            str(source),
            str(folder / name),
            handler_name="OpenAIInstructionHandler",
            template={"prompt_type": "chatml"},
            **options,
        ),
        tokenizer,
    )


@pytest.mark.parametrize("neat", [False, True])
def test_packed_files_hold_the_samples_of_the_unpacked_ones(
    tmp_path: Path, tokenizer: Tokenizer, neat: bool
) -> None:
    """PACK: every sample is in one row, at neighbouring places, under one number."""
    run(tmp_path, tokenizer, "plain")
    summary = run(tmp_path, tokenizer, "rows", pack=True, neat_pack=neat, seq_length=256)
    expected = sorted(chats.samples(tmp_path / "plain"))
    ids, labels, numbers = (
        np.array(chats.stored(tmp_path / f"rows_packed_{key}_document"))
        for key in ("input_ids", "labels", "attention_mask")
    )
    assert ids.shape[1] == 256 and ids.shape == labels.shape == numbers.shape
    if not neat:
        assert set(np.unique(numbers)) <= {0, 1}
        return
    found = []
    for row in range(len(ids)):
        for number in range(1, numbers[row].max() + 1):
            at = np.flatnonzero(numbers[row] == number)
            assert (np.diff(at) == 1).all()
            found.append((ids[row][at].tolist(), labels[row][at].tolist()))
        rest = numbers[row] == 0
        assert (labels[row][rest] == -100).all()
        assert (ids[row][rest] == tokenizer.pad_token_id).all()
    assert sorted(found) == expected
    note = summary.manifests["labels"]
    assert (note.seq_length, note.pad) == (256, tokenizer.pad_token_id)
    assert summary.packed is not None and summary.packed[1] > 0.95


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pack": True}, "--pack needs --seq-length"),
        ({"neat_pack": True, "seq_length": 64}, "--neat-pack needs --pack"),
        ({"over_long": "cut"}, "--over-long needs --seq-length"),
        ({"seq_length": 8, "pack": True}, "longer than --seq-length"),
    ],
)
def test_wrong_requests(
    tmp_path: Path, tokenizer: Tokenizer, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, tokenizer, "x", **options)
