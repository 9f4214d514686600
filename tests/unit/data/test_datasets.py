"""Training samples are Megatron's own, in Megatron's order, from every form of ``--data-path``."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from mindspeed.errors import UserError
from mindspeed_llm.data.datasets.blend import Blend, parse_blend
from mindspeed_llm.data.datasets.build import build_datasets, collator, splits_with_data
from mindspeed_llm.data.preprocess.command import PreprocessOptions, preprocess
from mindspeed_llm.data.storage.indexed import IndexedWriter
from mindspeed_llm.data.tokenizer import NullTokenizer, load_hf_tokenizer
from mindspeed_llm.flags.data import DataFlags
from tests.data import small

SEQ = 16
EOD = 99


@pytest.fixture
def prefixes(tmp_path: Path) -> list[str]:
    """Two data sets, whose tokens tell which one they are from."""
    draw = np.random.default_rng(0)
    names = []
    for name, low in (("a_text_document", 0), ("b_text_document", 50)):
        with IndexedWriter(tmp_path / "data" / name, np.dtype(np.uint16)) as writer:
            for length in draw.integers(1, 40, size=60):
                writer.add(
                    np.append(draw.integers(low, low + 49, size=length - 1), EOD),
                    np.array([length]),
                )
            writer.commit()
        names.append(str(tmp_path / "data" / name))
    return names


def build(flags: DataFlags, num_samples: tuple[int, int, int] = (40, 0, 0)):
    return build_datasets(flags, num_samples, NullTokenizer(EOD), seq_length=SEQ, seed=7)


def megatrons_own(tmp_path: Path, sizes: list[int], **source):
    """The same data sets built by megatron-core alone."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=7,
        sequence_length=SEQ,
        tokenizer=NullTokenizer(EOD),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        path_to_cache=None if "blend" in source and len(source["blend"][0]) > 1 else str(tmp_path),
        **source,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()


def equal(one, other) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(one[i][key], other[i][key])
        for i in range(len(one))
        for key in ("tokens", "labels", "loss_mask", "position_ids")
    )


def test_one_prefix_with_a_split(prefixes: list[str], tmp_path: Path) -> None:
    flags = DataFlags(data_path=(prefixes[0],), split="60,30,10")
    ours = build(flags, (200, 20, 5))
    theirs = megatrons_own(tmp_path, [200, 20, 5], blend=([prefixes[0]], None), split="60,30,10")
    for one, other in zip(ours, theirs, strict=True):
        assert equal(one, other)
    # Again, now from the cache.
    assert equal(build(flags, (200, 20, 5))[0], theirs[0])


def test_weights(prefixes: list[str], tmp_path: Path) -> None:
    a, b = prefixes
    ours = build(DataFlags(data_path=("1", a, "3", b), split="100,0,0"))[0]
    theirs = megatrons_own(tmp_path, [40, 0, 0], blend=([a, b], [1.0, 3.0]), split="100,0,0")[0]
    assert equal(ours, theirs)
    from_b = sum(
        sample["tokens"].max().item() != EOD and sample["tokens"].min() >= 50
        for sample in (ours[i] for i in range(40))
    )
    assert [ours[i]["dataset_id"] for i in range(40)].count(1) == 30
    assert from_b <= 30


def test_prefixes_without_weights_are_read_once(prefixes: list[str], tmp_path: Path) -> None:
    ours = build(DataFlags(data_path=tuple(prefixes), split="100,0,0"), (60, 0, 0))[0]
    theirs = megatrons_own(tmp_path, [60, 0, 0], blend=(prefixes, None), split="100,0,0")[0]
    assert equal(ours, theirs)
    with pytest.raises(UserError, match="give weights"):
        build(DataFlags(data_path=tuple(prefixes), split="100,0,0"), (10_000, 0, 0))


def test_own_data_for_each_split(prefixes: list[str]) -> None:
    a, b = prefixes
    flags = DataFlags(train_data_path=(a,), valid_data_path=("0.5", a, "0.5", b))
    train, valid, test = build(flags, (40, 10, 0))
    assert (len(train) >= 40, len(valid) >= 10, test) == (True, True, None)
    assert splits_with_data(flags) == {"train", "valid"}
    with pytest.raises(UserError, match="--train-data-path is not given"):
        build(DataFlags(valid_data_path=(a,)), (40, 10, 0))


@pytest.mark.parametrize("reset_positions", [True, False])
def test_documents_apart_are_megatron_s(prefixes: list[str], reset_positions: bool) -> None:
    """PACK-01: positions and boundaries of a batch are those of Megatron's own [s, s] masks."""
    from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids

    flags = DataFlags(
        data_path=(prefixes[0],),
        split="100,0,0",
        eod_mask_loss=True,
        reset_position_ids=reset_positions,
        reset_attention_mask=True,
    )
    samples = build(flags)[0]
    batch = collator(flags, NullTokenizer(EOD), SEQ, 1)([samples[i] for i in range(8)])
    assert (batch["tokens"][:, :-1] == EOD).any()
    for row in range(8):
        mask, loss_mask, positions = _get_ltor_masks_and_position_ids(
            batch["tokens"][row], EOD, reset_positions, True, True, True
        )
        segments = batch["segments"][row]
        later = np.triu(np.ones((SEQ, SEQ), dtype=bool), 1)
        hidden = (segments[:, None] != segments).numpy() | later
        assert np.array_equal(hidden, mask[0].numpy())
        assert np.array_equal(batch["position_ids"][row], positions)
        assert np.array_equal(batch["loss_mask"][row], loss_mask)


def test_documents_without_an_end_cannot_be_kept_apart(tmp_path: Path) -> None:
    """PACK-01: --append-eod and --reset-attention-mask go together."""
    tokenizer = load_hf_tokenizer(small.byte_level())
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"words and words {n}"}) + "\n" for n in range(30)))
    preprocess(PreprocessOptions(input=str(text), output_prefix=str(tmp_path / "d")), tokenizer)
    flags = DataFlags(data_path=(f"{tmp_path}/d_text_document",), reset_attention_mask=True)
    with pytest.raises(UserError, match=r"no end-of-document token.*--append-eod"):
        build_datasets(flags, (4, 0, 0), tokenizer, seq_length=SEQ, seed=1)


def test_mock_data() -> None:
    train, valid, test = build(DataFlags(mock_data=True), (10, 2, 0))
    assert len(train) >= 10
    assert len(valid) >= 2
    assert test is None
    assert train[0]["tokens"].shape == (SEQ,)


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (("p",), Blend(("p",))),
        (("p", "q"), Blend(("p", "q"))),
        (("p", "q", "r"), Blend(("p", "q", "r"))),
        (("1", "p"), Blend(("p",), (1.0,))),
        (("0.3", "p", "7e-1", "q"), Blend(("p", "q"), (0.3, 0.7))),
    ],
)
def test_forms_of_data_path(words: tuple[str, ...], blend: Blend) -> None:
    assert parse_blend(words, "--data-path") == blend


@pytest.mark.parametrize(
    "words", [("1", "p", "q"), ("p", "1"), ("1", "2"), ("0", "p"), ("nan", "p"), ("-1", "p"), ()]
)
def test_wrong_forms_of_data_path(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="--data-path"):
        parse_blend(words, "--data-path")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.removesuffix("_text_document"), r"Did you mean .*a_text_document"),
        (lambda p: p + ".bin", r"without \.bin"),
        (lambda p: p.replace("a_text", "a_txt"), r"Did you mean .*a_text_document"),
        (lambda p: "/no/such/place/x", "There is no folder"),
        (lambda p: p.replace("a_text_document", "zzz"), "holds: a_text_document, b_text_document"),
    ],
)
def test_a_wrong_prefix_names_what_is_near(prefixes: list[str], change, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(DataFlags(data_path=(change(prefixes[0]),)))


def test_one_half_missing(prefixes: list[str]) -> None:
    Path(prefixes[0] + ".bin").unlink()
    with pytest.raises(UserError, match=r"a_text_document\.bin is missing"):
        build(DataFlags(data_path=(prefixes[0],)))


def test_data_that_is_too_little(prefixes: list[str], tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "tiny", np.dtype(np.uint16)) as writer:
        writer.add(np.arange(SEQ), np.array([SEQ]))
        writer.commit()
    with pytest.raises(UserError, match="16 tokens, fewer than one sample"):
        build(DataFlags(data_path=(str(tmp_path / "tiny"),)))
    with pytest.raises(UserError, match=r"the test share of .* is empty"):
        build(DataFlags(data_path=(prefixes[0],), split="9990,9,1"), (10, 0, 5))
    with pytest.raises(UserError, match="--split gives it no share"):
        build(DataFlags(data_path=(prefixes[0],), split="0,100,0"), (10, 5, 0))


def test_a_split_without_a_share_is_left_out_and_said(
    prefixes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = DataFlags(data_path=(prefixes[0],), split="90,10")
    assert splits_with_data(flags) == {"train", "valid"}
    train, valid, test = build(flags, (10, 5, 5))
    assert test is None
    assert len(train) >= 10
    assert len(valid) >= 5
    assert "no test data" in capsys.readouterr().out


def test_data_flags_that_contradict_each_other(prefixes: list[str]) -> None:
    for flags, words in (
        (DataFlags(), "no data"),
        (DataFlags(mock_data=True, data_path=(prefixes[0],)), "exclude"),
        (DataFlags(train_data_path=(prefixes[0],), data_path=(prefixes[0],)), "exclude"),
    ):
        with pytest.raises(UserError, match=words):
            build(flags)


def test_data_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words to train on\n" * 50)
    made_with = load_hf_tokenizer(small.byte_level())
    options = PreprocessOptions(str(tmp_path / "a.txt"), str(tmp_path / "a"))
    prefix = preprocess(options, made_with).prefixes["text"]
    flags = DataFlags(data_path=(str(prefix),), split="100,0,0")

    def use(folder: Path) -> None:
        tokenizer = load_hf_tokenizer(folder)
        build_datasets(flags, (4, 0, 0), tokenizer, seq_length=SEQ, seed=1)

    use(small.byte_level())
    # The same vocabulary with a start token before each text: the ids mean the same.
    use(small.with_bos())
    with pytest.raises(UserError, match="made with another tokenizer"):
        use(small.lacking_bytes())
    # Further tokens after those of the data do no harm.
    larger = tmp_path / "larger"
    made_with.hf.add_tokens(["<|later|>"])
    made_with.hf.save_pretrained(larger)
    use(larger)
    # A note that cannot be read says so.
    Path(f"{prefix}.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(UserError, match="not a note of this tool"):
        use(small.byte_level())


def test_flags_reach_the_data_sets(prefixes: list[str], tmp_path: Path) -> None:
    flags = DataFlags(data_path=(prefixes[0],), split="100,0,0")
    cached = dataclasses.replace(flags, data_cache_path=str(tmp_path / "cache"))
    assert equal(build(flags)[0], build(cached)[0])
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 3
    unmapped = dataclasses.replace(flags, mmap_bin_files=False, num_dataset_builder_threads=2)
    assert equal(build(flags)[0], build(unmapped)[0])
