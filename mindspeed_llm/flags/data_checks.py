"""Rules of the flags of training data among themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mindspeed_llm.flags.config import Config


def data_faults(config: Config) -> Iterator[str]:
    """Faults of the flags of training data among themselves."""
    flags = config.data
    per_split = {
        "--train-data-path": flags.train_data_path,
        "--valid-data-path": flags.valid_data_path,
        "--test-data-path": flags.test_data_path,
    }
    sources = [
        name
        for name, given in (
            ("--data-path", flags.data_path),
            ("--mock-data", flags.mock_data),
            (" ".join(name for name, value in per_split.items() if value), any(per_split.values())),
        )
        if given
    ]
    if len(sources) > 1:
        yield f"{' and '.join(sources)} exclude each other: give one source of data"
    if not sources:
        yield "--data-path is required (or --train-data-path, or --mock-data)"
    yield from check_split(flags.split)
    yield from _samples(config)


def _samples(config: Config) -> Iterator[str]:
    flags = config.data
    if flags.reset_position_ids and not flags.reset_attention_mask:
        yield (
            "--reset-position-ids alone does not keep documents, or samples of a packed row, from "
            "seeing each other: add --reset-attention-mask"
        )
    if flags.is_pairwise_dataset and config.tool == "pretrain":
        yield "--is-pairwise-dataset is for posttrain_gpt.py --stage dpo"
    if not (flags.is_instruction_dataset or flags.is_pairwise_dataset):
        if flags.no_shuffle:
            yield (
                "--no-shuffle needs --is-instruction-dataset: samples of running text are drawn "
                "in Megatron's order"
            )
        return
    if flags.mock_data:
        yield "--mock-data generates running text, not samples; give --data-path"
    if flags.neat_pack and not flags.reset_attention_mask:
        yield (
            "--neat-pack: the samples of a row would see each other; add --reset-attention-mask "
            "(and --reset-position-ids)"
        )
    if flags.eod_mask_loss:
        yield "--eod-mask-loss: instruction data says itself which tokens are trained; leave it out"
    if flags.no_shuffle and flags.full_shuffle_instruction_dataset:
        yield "--no-shuffle and --full-shuffle-instruction-dataset exclude each other"


def check_split(split: str) -> Iterator[str]:
    """Faults of a ``--split`` value: up to three shares, none negative, not all zero."""
    try:
        shares = [float(part) for part in split.split(",")]
    except ValueError:
        shares = []
    good = 1 <= len(shares) <= 3 and all(math.isfinite(s) and s >= 0 for s in shares)
    if not good or sum(shares) <= 0:
        yield (
            f"--split {split!r} is not up to three shares (training, evaluation, test) such as "
            "949,50,1"
        )
