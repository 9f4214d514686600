"""The data sets of training, evaluation and test: Megatron's samples from ``--data-path``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.data.datasets.blend import Blend, check_blend, parse_blend
from mindspeed_llm.data.storage.indexed import IndexHeader
from mindspeed_llm.data.storage.manifest import check_handler, check_tokenizer, read_manifest
from mindspeed_llm.data.tokenizer import NullTokenizer, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import Dataset

    from mindspeed_llm.flags.data import DataFlags

SPLITS = ("train", "valid", "test")
# A blend may ask a little more of a data set than its weight says; each further try builds more.
SURPLUSES = (0.005, 0.05, 0.5)


def build_datasets(
    data: DataFlags,
    num_samples: Sequence[int | None],
    tokenizer: Tokenizer | NullTokenizer,
    *,
    seq_length: int,
    seed: int,
    wanted: bool = True,
    global_batch_size: int = 1,
    prompt_type: str | None = None,
) -> list[Dataset | None]:
    """Build the data sets of the three splits; collective over all ranks.

    Args:
        data: the data flags (``--data-path``, ``--split``, ``--data-cache-path`` ...).
        num_samples: samples needed of (train, valid, test); 0: none, the split is left out;
            None: one pass. Evaluation and test are left out too where the flags give them no
            data (:func:`splits_with_data`), as Megatron does.
        tokenizer: its end-of-document id, and its vocabulary against that of the data.
        seq_length: tokens in a sample; one more is read for the last label.
        seed: of the order of documents and samples.
        wanted: whether this rank reads data.
        global_batch_size, prompt_type: see
            :func:`~mindspeed_llm.data.datasets.instruction.build_instruction_datasets`.

    Returns:
        per split a data set whose samples are dicts of ``tokens``, ``labels`` (int64
        [seq_length]), ``loss_mask`` (float32 [seq_length]) and ``position_ids`` (int64
        [seq_length]), or with instruction and preference data
        :class:`~mindspeed_llm.data.datasets.collate.Sample` and pairs of them; None where nothing
        is needed, or on a rank that reads none. :func:`collator` makes batches of either.

    Raises:
        UserError: a data set that is missing, damaged, too small, or of another tokenizer.
    """
    blends = blends_of(data)
    present = splits_with_data(data)
    for split, count in zip(SPLITS[1:], num_samples[1:], strict=True):
        if count and split not in present:
            say(f"> no {split} data: neither --split nor a path of its own gives it any")
    num_samples = [
        count if split in present or split == "train" else 0
        for split, count in zip(SPLITS, num_samples, strict=True)
    ]
    if blends is None:
        return _mock(data, num_samples, tokenizer, seq_length, seed) if wanted else [None] * 3
    if of_samples(data):
        from mindspeed_llm.data.datasets.instruction import build_instruction_datasets

        # Every rank looks at the data, so that all of them meet what is wrong with it.
        made = build_instruction_datasets(
            data,
            blends,
            num_samples,
            tokenizer,
            seq_length=seq_length,
            seed=seed,
            global_batch_size=global_batch_size,
            prompt_type=prompt_type,
        )
        return [*made] if wanted else [None] * 3
    prefixes = sorted({prefix for blend in blends.values() for prefix in blend.prefixes})
    for prefix in prefixes:
        check_handler(prefix, "pretrain")
        if isinstance(tokenizer, Tokenizer):
            check_tokenizer(prefix, tokenizer)
        _check_ends(prefix, data)
    _check_size(prefixes, seq_length)

    from mindspeed_llm.data.datasets.index_cache import built_once, choose_builder

    folder = cache_folder(data, prefixes)
    builder = choose_builder(folder, wanted, False if data.no_shared_storage else None)

    def build() -> list[Dataset | None]:
        return _build(data, blends, num_samples, tokenizer, seq_length, seed, folder)

    datasets = built_once(build, builder, wanted, folder, build_timeout(prefixes, num_samples))
    return datasets if datasets is not None else [None] * 3


def of_samples(data: DataFlags) -> bool:
    """Whether the data are samples with labels, not running text."""
    return data.is_instruction_dataset or data.is_pairwise_dataset


def collator(
    data: DataFlags, tokenizer: Tokenizer | NullTokenizer, seq_length: int, divisor: int
) -> Callable[[list[Any]], dict[str, Tensor]] | None:
    """What makes batches of the samples; None for torch's own way.

    Args:
        divisor: see :func:`~mindspeed_llm.data.datasets.instruction.collator_of`.
    """
    if of_samples(data):
        from mindspeed_llm.data.datasets.instruction import collator_of

        return collator_of(data, seq_length, divisor)
    if data.reset_attention_mask:
        from mindspeed_llm.data.datasets.collate import DocumentCollator

        return DocumentCollator(tokenizer.eod, data.reset_position_ids)
    return None


def _check_ends(prefix: str, data: DataFlags) -> None:
    """Documents can be kept apart only where something ends them."""
    note = read_manifest(prefix)
    if data.reset_attention_mask and note is not None and note.eod is None:
        raise UserError(
            f"--reset-attention-mask: the documents of {prefix} have no end-of-document token, by "
            "which they would be told apart: preprocess the text again with --append-eod."
        )


def blends_of(data: DataFlags) -> dict[str, Blend] | None:
    """The blend for "all" splits, or for each split that has its own; None for mock data.

    Raises:
        UserError: no data is named, or it is named in two ways, or it is not there.
    """
    own = {
        "train": ("--train-data-path", data.train_data_path),
        "valid": ("--valid-data-path", data.valid_data_path),
        "test": ("--test-data-path", data.test_data_path),
    }
    given = {split: pair for split, pair in own.items() if pair[1]}
    named = {"all": ("--data-path", data.data_path)} if data.data_path else {}
    if data.mock_data:
        if named or given:
            raise UserError("--mock-data and a data path exclude each other.")
        return None
    if named and given:
        raise UserError(f"--data-path and {next(iter(given.values()))[0]} exclude each other.")
    if not named and not given:
        raise UserError("no data: give --data-path PREFIX, or --mock-data for generated data.")
    blends: dict[str, Blend] = {}
    for split, (flag, words) in (named or given).items():
        blends[split] = parse_blend(words or (), flag)
        if not of_samples(data):
            check_blend(blends[split], flag)
    return blends


def splits_with_data(data: DataFlags) -> set[str]:
    """Which of train, valid and test the flags give data; the same on every rank."""
    if data.mock_data:
        return set(SPLITS)
    if not data.data_path:
        own = (data.train_data_path, data.valid_data_path, data.test_data_path)
        return {split for split, words in zip(SPLITS, own, strict=True) if words}
    from megatron.core.datasets.blended_megatron_dataset_config import parse_and_normalize_split

    shares = parse_and_normalize_split(data.split)
    return {split for split, share in zip(SPLITS, shares, strict=True) if share > 0}


def cache_folder(data: DataFlags, prefixes: Sequence[str]) -> Path:
    """Where the sample indices are kept: as told, beside the data, or in the user's own cache."""
    if data.data_cache_path:
        return Path(data.data_cache_path)
    beside = Path(prefixes[0]).resolve().parent
    if os.access(beside, os.W_OK):
        return beside / "index_cache"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "mindspeed_llm" / "index_cache"
    say(f"> {beside} cannot be written: the sample indices go to {folder} (--data-cache-path)")
    return folder


def build_timeout(prefixes: Sequence[str], num_samples: Sequence[int | None]) -> timedelta:
    """How long building may take: half an hour, and a second for every 100,000 entries."""
    documents = sum(IndexHeader(prefix).sequences for prefix in prefixes)
    entries = documents + sum(count or 0 for count in num_samples)
    return timedelta(seconds=1800 + entries / 100_000)


def _check_size(prefixes: Sequence[str], seq_length: int) -> None:
    for prefix in prefixes:
        header = IndexHeader(prefix)
        tokens = int(header.lengths[: seq_length + 1].sum(dtype="int64"))
        if tokens < seq_length + 1:
            # The first sequences may be short or empty ones.
            tokens = int(header.lengths.sum(dtype="int64"))
        if tokens < seq_length + 1:
            raise UserError(
                f"{prefix} has {tokens} tokens, fewer than one sample (--seq-length {seq_length} "
                "and one more). Use more text or a shorter --seq-length."
            )


def _config(data: DataFlags, tokenizer: Any, seq_length: int, seed: int, **more: Any) -> Any:
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig

    return GPTDatasetConfig(
        random_seed=seed,
        sequence_length=seq_length,
        tokenizer=tokenizer,
        # Documents are kept apart batch by batch (collator); a [s, s] mask is made nowhere.
        reset_position_ids=False,
        reset_attention_mask=False,
        create_attention_mask=False,
        eod_mask_loss=data.eod_mask_loss,
        mmap_bin_files=data.mmap_bin_files,
        num_dataset_builder_threads=data.num_dataset_builder_threads,
        **more,
    )


def _mock(
    data: DataFlags, num_samples: Sequence[int | None], tokenizer: Any, seq_length: int, seed: int
) -> list[Dataset | None]:
    from megatron.core.datasets.gpt_dataset import MockGPTDataset

    from mindspeed_llm.data.datasets.index_cache import SequentialBuilder, without_cache_warnings

    config = _config(data, tokenizer, seq_length, seed)
    sizes = _leave_out(config, num_samples)
    with without_cache_warnings():
        return SequentialBuilder(MockGPTDataset, sizes, lambda: True, config).build()


def _build(
    data: DataFlags,
    blends: dict[str, Blend],
    num_samples: Sequence[int | None],
    tokenizer: Any,
    seq_length: int,
    seed: int,
    folder: Path,
) -> list[Dataset | None]:
    """Build on this rank alone."""
    from mindspeed_llm.data.datasets.index_cache import CachedGPTDataset, SequentialBuilder

    if "all" in blends:
        source: dict[str, Any] = {"blend": blends["all"].as_megatron(), "split": data.split}
    else:
        per_split = [
            blends[split].as_megatron() if split in blends and count != 0 else None
            for split, count in zip(SPLITS, num_samples, strict=True)
        ]
        source = {"blend_per_split": per_split}

    def attempt(surplus: float) -> list[Dataset | None]:
        config = _config(
            data,
            tokenizer,
            seq_length,
            seed,
            path_to_cache=str(folder),
            mid_level_dataset_surplus=surplus,
            **source,
        )
        sizes = _leave_out(config, num_samples)
        with warnings.catch_warnings():
            # The token that pads is none here, on purpose (Tokenizer.pad).
            warnings.filterwarnings("ignore", message="The pad token id in the tokenizer")
            return SequentialBuilder(CachedGPTDataset, sizes, lambda: True, config).build()

    datasets = _with_surplus(attempt)
    for split, dataset, count in zip(SPLITS, datasets, num_samples, strict=True):
        _check_length(split, dataset, count, "all" in blends)
    return datasets


def _with_surplus(attempt: Callable[[float], list[Dataset | None]]) -> list[Dataset | None]:
    for surplus in SURPLUSES[:-1]:
        try:
            return attempt(surplus)
        except IndexError:
            # Megatron: "the blend oversamples the contributing datasets".
            continue
    return attempt(SURPLUSES[-1])


def _leave_out(config: Any, num_samples: Sequence[int | None]) -> list[int | None]:
    """Drop the splits of which no sample is needed; Megatron would build an epoch of each."""
    if config.split_matrix is not None:
        config.split_matrix = [
            None if count == 0 else share
            for share, count in zip(config.split_matrix, num_samples, strict=True)
        ]
    return list(num_samples)


def _check_length(split: str, dataset: Any, count: int | None, one_source: bool) -> None:
    if not count:
        return
    if dataset is None:
        how = "--split gives it no share" if one_source else f"--{split}-data-path is not given"
        raise UserError(f"{count} {split} samples are needed, but {how}.")
    if len(dataset) < count:
        raise UserError(
            f"{count} {split} samples are needed; one pass over the data gives {len(dataset)}. "
            "Data sets without weights are read once: give weights (weight prefix weight prefix "
            "...) to read them as often as needed, or train for fewer samples."
        )
