"""The order of micro-batches over data-parallel ranks, and going on from any point."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.data.datasets.loader import build_dataloader


class Numbers(torch.utils.data.Dataset):
    """Sample i is i."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def batches(count: int, consumed: int, micro: int, rank: int, size: int, **options):
    loader = build_dataloader(Numbers(count), consumed, micro, rank, size, **options)
    return (batch.tolist() for batch in loader)


def test_sequential_order_by_hand() -> None:
    assert list(batches(11, 0, 2, 0, 2)) == [[0, 1], [4, 5]]
    assert list(batches(11, 0, 2, 1, 2)) == [[2, 3], [6, 7]]
    # What is left at the end is dropped; going on is the same stream.
    assert list(batches(11, 4, 2, 0, 2)) == [[4, 5]]
    assert list(batches(12, 4, 2, 1, 2)) == [[6, 7], [10, 11]]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_global_batches_do_not_depend_on_the_number_of_ranks(size: int) -> None:
    ranks = [list(batches(64, 16, 1, rank, size)) for rank in range(size)]
    flat = [sample for step in zip(*ranks, strict=True) for batch in step for sample in batch]
    assert flat == list(range(16, 64))


def test_loading_in_processes_gives_the_same() -> None:
    assert list(batches(12, 0, 2, 0, 2, num_workers=2)) == list(batches(12, 0, 2, 0, 2))


def cyclic_by_hand(count: int, epoch: int, micro: int, rank: int, size: int) -> list[list[int]]:
    """One epoch with sharding, as Megatron-LM documents it: a shuffled part for each rank."""
    share = count // (micro * size) * micro
    generator = torch.Generator()
    generator.manual_seed(epoch)
    order = [rank * share + i for i in torch.randperm(share, generator=generator).tolist()]
    return [order[i : i + micro] for i in range(0, share, micro)]


def test_cyclic_epochs_follow_each_other() -> None:
    expected = [batch for epoch in range(3) for batch in cyclic_by_hand(22, epoch, 2, 1, 2)]
    stream = batches(22, 0, 2, 1, 2, dataloader_type="cyclic")
    assert list(islice(stream, len(expected))) == expected


@pytest.mark.parametrize("sharding", [True, False])
def test_cyclic_goes_on_where_it_stopped(sharding: bool) -> None:
    options = {"dataloader_type": "cyclic", "data_sharding": sharding}
    for rank in range(2):
        straight = list(islice(batches(22, 0, 2, rank, 2, **options), 17))
        for done in (1, 4, 5, 9):
            rest = list(islice(batches(22, done * 4, 2, rank, 2, **options), 17 - done))
            assert rest == straight[done:]


def test_cyclic_without_sharding_uses_each_sample_once() -> None:
    options = {"dataloader_type": "cyclic", "data_sharding": False}
    epoch = [list(islice(batches(20, 0, 2, rank, 2, **options), 5)) for rank in range(2)]
    assert sorted(sum((sum(rank, []) for rank in epoch), [])) == list(range(20))  # noqa: RUF017


def test_nothing_left() -> None:
    assert build_dataloader(None, 0, 1, 0, 1) is None
    with pytest.raises(UserError, match="all 10 samples are used up"):
        build_dataloader(Numbers(10), 10, 1, 0, 1)
    with pytest.raises(UserError, match="fewer than one micro-batch of all ranks"):
        build_dataloader(Numbers(3), 0, 2, 0, 2)
    with pytest.raises(UserError, match="no multiple"):
        build_dataloader(Numbers(20), 3, 2, 0, 2, dataloader_type="cyclic")
