"""Batches for a data-parallel rank, in Megatron's order, from any point on.

The order is that of Megatron-LM's pretraining samplers, so that a run continued here, or there,
sees the samples it would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader, Dataset


class SequentialSampler:
    """Sample numbers in order; of each run of ``micro_batch_size * size`` a rank takes its slice.

    Args:
        total: samples in the data set.
        consumed: samples that the whole run, over all ranks, has used before.
        micro_batch_size: samples in a batch of one rank.
        rank, size: of the data-parallel group.
    """

    def __init__(
        self, total: int, consumed: int, micro_batch_size: int, rank: int, size: int
    ) -> None:
        self.total = total
        self.consumed = consumed
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.size = size

    def __len__(self) -> int:
        """Batches from ``consumed`` on; an incomplete last one is dropped."""
        return (self.total - self.consumed) // (self.micro_batch_size * self.size)

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_size * self.size
        first = self.consumed + self.rank * self.micro_batch_size
        for start in range(first, first + len(self) * step, step):
            yield list(range(start, start + self.micro_batch_size))


class CyclicSampler(SequentialSampler):
    """A fresh random order each epoch (seeded by its number), in one continuous stream.

    With ``sharding`` each rank shuffles its own part of the data set; without, all ranks share
    one order and take turns.
    """

    def __init__(
        self,
        total: int,
        consumed: int,
        micro_batch_size: int,
        rank: int,
        size: int,
        sharding: bool = True,
    ) -> None:
        super().__init__(total, consumed, micro_batch_size, rank, size)
        self.sharding = sharding

    def __len__(self) -> int:
        """Batches left in the current epoch."""
        step = self.micro_batch_size * self.size
        per_epoch = self.total // step * step
        return (per_epoch - self.consumed % per_epoch) // step

    def __iter__(self) -> Iterator[list[int]]:
        step = self.micro_batch_size * self.size
        while True:
            order = self._epoch()
            for start in range(0, len(order) - self.micro_batch_size + 1, self.micro_batch_size):
                self.consumed += step
                yield order[start : start + self.micro_batch_size]

    def _epoch(self) -> list[int]:
        """What is left of this rank's order in the current epoch."""
        import torch

        step = self.micro_batch_size * self.size
        per_epoch = self.total // step * step
        epoch, used = divmod(self.consumed, per_epoch)
        generator = torch.Generator().manual_seed(epoch)
        if self.sharding:
            share = per_epoch // self.size
            order = torch.randperm(share, generator=generator) + self.rank * share
            return order[used // self.size :].tolist()
        whole = self.total // self.micro_batch_size * self.micro_batch_size
        order = torch.randperm(whole, generator=generator)[used:][self.rank :: self.size]
        return order[: (per_epoch - used) // self.size].tolist()


def build_dataloader(
    dataset: Dataset[Any] | None,
    consumed_samples: int,
    micro_batch_size: int,
    data_parallel_rank: int,
    data_parallel_size: int,
    num_workers: int = 0,
    dataloader_type: str = "single",
    data_sharding: bool = True,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> DataLoader | None:
    """Iterate over this rank's micro-batches from ``consumed_samples`` on.

    Args:
        dataset: one of :func:`~mindspeed_llm.data.datasets.build.build_datasets`; None gives None.
        consumed_samples: samples used by all ranks before.
        dataloader_type: "single": one pass in the data set's order (which is shuffled already,
            epochs included); "cyclic": endless passes, each in a new order.
        num_workers: processes that read ahead.
        collate_fn: makes a batch of samples; torch's own when left out.

    Raises:
        UserError: no sample is left, or the data set is smaller than one global micro-batch.
    """
    if dataset is None:
        return None
    from torch.utils.data import DataLoader

    total = len(dataset)  # type: ignore[arg-type]
    step = micro_batch_size * data_parallel_size
    if total < step:
        raise UserError(
            f"the data set has {total} samples, fewer than one micro-batch of all ranks "
            f"({micro_batch_size} x {data_parallel_size})."
        )
    place = (total, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size)
    sampler: SequentialSampler
    if dataloader_type == "cyclic":
        if consumed_samples % (total // step * step) % step:
            raise UserError(
                f"{consumed_samples} consumed samples are no multiple of micro-batch x "
                f"data-parallel size ({step}): a cyclic order cannot go on from there."
            )
        sampler = CyclicSampler(*place, data_sharding)
    else:
        if consumed_samples >= total:
            raise UserError(
                f"all {total} samples are used up ({consumed_samples} consumed): nothing is left "
                "to train on. Ask for more with --train-iters or --train-samples."
            )
        sampler = SequentialSampler(*place)
    return DataLoader(
        dataset,
        batch_sampler=sampler,  # type: ignore[arg-type]
        num_workers=num_workers,
        pin_memory=pin_memory,
        persistent_workers=num_workers > 0,
        collate_fn=collate_fn,
    )
