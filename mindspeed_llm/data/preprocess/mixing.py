"""Several data sets as one stream of batches: one after the other, or interleaved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mindspeed_llm.data.handlers.llamafactory import Source
from mindspeed_llm.data.readers import BadRecords, Batch, Fields, read_batches

BATCH_RECORDS = 2048


def first_records(batches: Iterator[Batch], limit: int | None) -> Iterator[Batch]:
    """The first ``limit`` records."""
    for batch in batches:
        if limit is not None:
            if limit <= 0:
                return
            batch = _head(batch, limit)
            limit -= len(batch.positions)
        yield batch


def _head(batch: Batch, count: int) -> Batch:
    columns = {name: column[:count] for name, column in batch.columns.items()}
    return replace(batch, columns=columns, positions=batch.positions[:count])


def all_fields(sources: Sequence[Source]) -> Fields:
    """The columns of any of the data sets."""
    names = dict.fromkeys(name for source in sources for name in source.handler.fields.names)
    return Fields(tuple(names), frozenset(names), text=False)


def mixed(
    sources: Sequence[Source],
    bad: BadRecords,
    strategy: str,
    shares: Sequence[float] | None,
    seed: int,
    limit: int | None = None,
) -> Iterator[Batch]:
    """Batches of all data sets; each record knows which one it is from.

    Args:
        strategy: "concat"; "interleave_under": until the first data set ends; "interleave_over":
            until each has ended once, those that end begin again.
        shares: how often each is drawn; None: in turn.
        seed: of the drawing.
        limit: the most records of each.
    """

    def read(number: int) -> Iterator[Batch]:
        source = sources[number]
        most = min((n for n in (limit, source.limit) if n is not None), default=None)
        return first_records(read_batches(source.files, source.handler.fields, bad), most)

    if strategy == "concat":
        for number in range(len(sources)):
            for batch in read(number):
                yield replace(batch, sources=[number] * len(batch.positions))
        return
    order = _order(len(sources), shares, seed)
    yield from _interleaved(sources, read, order, again=strategy == "interleave_over")


def _order(count: int, shares: Sequence[float] | None, seed: int) -> Iterator[int]:
    """Which data set comes next, for ever."""
    if shares is None:
        yield from itertools.cycle(range(count))
    draw = np.random.default_rng(seed)
    while True:
        yield from map(int, draw.choice(count, size=1024, p=shares))


Record = tuple[str, dict[str, Any], int]


def _records(batches: Iterator[Batch]) -> Iterator[Record]:
    """(place, values, bytes) of each record."""
    for batch in batches:
        size = batch.consumed // max(1, len(batch.positions))
        for index, values in enumerate(zip(*batch.columns.values(), strict=True)):
            yield batch.place(index), dict(zip(batch.columns, values, strict=True)), size


def _interleaved(
    sources: Sequence[Source],
    read: Callable[[int], Iterator[Batch]],
    order: Iterator[int],
    again: bool,
) -> Iterator[Batch]:
    names = all_fields(sources).names
    streams = [_records(read(number)) for number in range(len(sources))]
    ended: set[int] = set()
    taken: list[tuple[int, Record]] = []
    for number in order:
        record = next(streams[number], None)
        if record is None:
            ended.add(number)
            if not again or len(ended) == len(sources):
                break
            streams[number] = _records(read(number))
            record = next(streams[number], None)
            if record is None:  # an empty data set
                break
        taken.append((number, record))
        if len(taken) == BATCH_RECORDS:
            yield _batch(taken, names)
            taken = []
    if taken:
        yield _batch(taken, names)


def _batch(taken: list[tuple[int, Record]], names: Sequence[str]) -> Batch:
    return Batch(
        Path(),
        {name: [values.get(name) for _, (_, values, _) in taken] for name in names},
        range(len(taken)),
        sum(size for _, (_, _, size) in taken),
        sources=[number for number, _ in taken],
        places=[place for _, (place, _, _) in taken],
    )
