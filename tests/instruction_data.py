"""Small instruction data in the form that preprocessing writes, by megatron-core's own writer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.families import VOCAB

IGNORE = -100


@dataclass(frozen=True)
class Row:
    """A stored row: tokens, labels on the tokens themselves, the number of each token's sample."""

    tokens: list[int]
    labels: list[int]
    segments: list[int]


def sample(prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """A prompt that is not trained and an answer that is."""
    tokens = [*prompt, *answer]
    return Row(tokens, [IGNORE] * len(prompt) + list(answer), [1] * len(tokens))


def samples(count: int, low: int = 4, high: int = 20, seed: int = 0) -> list[Row]:
    """Samples of random lengths, whose answers are one token again and again: soon learnt."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        prompt = draw.integers(3, VOCAB - 1, size=draw.integers(low // 2, high // 2)).tolist()
        answer = [9] * int(draw.integers(low // 2, high // 2))
        rows.append(sample(prompt, [*answer, 2]))
    return rows


def pack(rows: Sequence[Row], length: int) -> list[Row]:
    """Rows of exactly ``length`` tokens, filled in order."""
    packed, now = [], Row([], [], [])

    def close() -> None:
        rest = length - len(now.tokens)
        packed.append(
            Row(now.tokens + [0] * rest, now.labels + [IGNORE] * rest, now.segments + [0] * rest)
        )

    for row in rows:
        if len(now.tokens) + len(row.tokens) > length:
            close()
            now = Row([], [], [])
        number = max(now.segments, default=0) + 1
        now = Row(
            now.tokens + row.tokens,
            now.labels + row.labels,
            now.segments + [number] * len(row.tokens),
        )
    close()
    return packed


def write(prefix: Path, rows: Sequence[Row]) -> Path:
    """``{prefix}_packed_{input_ids,labels,attention_mask}_document``; the prefix again."""
    return write_keys(
        prefix,
        {
            "input_ids": [row.tokens for row in rows],
            "labels": [row.labels for row in rows],
            "attention_mask": [row.segments for row in rows],
        },
    )


def write_pairs(prefix: Path, pairs: Sequence[tuple[Row, Row]]) -> Path:
    """``{prefix}_packed_{chosen,rejected}_{input_ids,labels}_document``; the prefix again."""
    return write_keys(
        prefix,
        {
            f"{name}_{key}": [getattr(pair[index], attribute) for pair in pairs]
            for index, name in enumerate(("chosen", "rejected"))
            for key, attribute in (("input_ids", "tokens"), ("labels", "labels"))
        },
    )


def write_keys(prefix: Path, columns: dict[str, list[list[int]]]) -> Path:
    """One indexed data set a key."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    prefix.parent.mkdir(parents=True, exist_ok=True)
    for key, lists in columns.items():
        path = f"{prefix}_packed_{key}_document"
        builder = IndexedDatasetBuilder(f"{path}.bin", dtype=np.int32)
        for numbers in lists:
            builder.add_item(torch.tensor(numbers, dtype=torch.int32))
            builder.end_document()
        builder.finalize(f"{path}.idx")
    return prefix
