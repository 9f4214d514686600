"""Pairs of separate Hugging Face projections to the pair of Megatron's fused one, and back.

Every transform of the weight map only puts rows into another order, so it works on B as it does
on the weight, and A stays. Where Megatron fuses projections that have an A each, exactly one
pair says the same::

    [ΔWq]   [Bq 0  0 ] [Aq]
    [ΔWk] = [0  Bk 0 ] [Ak]        rank 3r; a projection without adapter has rows of zeros
    [ΔWv]   [0  0  Bv] [Av]

and if all have the same A (as in the export of an adapter that was trained in Megatron), the
pair is ``A`` and the rows ``Bq, Bk, Bv``, of rank r. The other way round the projections share
Megatron's A, unless B has the blocks above: then each gets its own again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mindspeed_llm.checkpoint.lora.adapter import LowRank
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import same_bits


def fuse(entry: Mapping, shape: ModelShape, parts: Sequence[LowRank | None]) -> LowRank:
    """The pair of the full Megatron tensor from one pair, or none, for each name of ``entry.hf``.

    Where scales differ, B carries the difference.
    """
    present = [part for part in parts if part is not None]
    first = present[0]
    if len(present) == len(parts) and all(_same_a(first, part) for part in present):
        b = entry.to_megatron(shape, tuple(part.b for part in present))
        return LowRank(first.a, b, first.scale)
    rank, start = sum(part.rank for part in present), 0
    dtype = first.b.dtype if _one_kind(present) else torch.float32
    blocks: list[Tensor] = []
    for part, dims in zip(parts, entry.hf_shapes(shape).values(), strict=True):
        block = torch.zeros(dims[0], rank, dtype=dtype)
        if part is not None:
            b = part.b if part.scale == first.scale else part.b.float() * (part.scale / first.scale)
            block[:, start : start + part.rank] = b
            start += part.rank
        blocks.append(block)
    a = torch.cat([part.a.to(dtype) for part in present])
    return LowRank(a, entry.to_megatron(shape, tuple(blocks)), first.scale)


def unfuse(entry: Mapping, shape: ModelShape, pair: LowRank, rank: int) -> dict[str, LowRank]:
    """Hugging Face name -> its pair; names without any contribution of their own are left out.

    Args:
        rank: the adapter's own rank, which is the size of the blocks to look for.
    """
    rows = entry.to_hf(shape, pair.b)
    owners = _owners(list(rows.values()), rank)
    if owners is None:
        return {name: LowRank(pair.a, b, pair.scale) for name, b in rows.items()}
    parts = {}
    for block, owner in enumerate(owners):
        name = entry.hf[owner]
        columns = slice(block * rank, (block + 1) * rank)
        parts[name] = LowRank(pair.a[columns], rows[name][:, columns], pair.scale)
    return parts


def _same_a(one: LowRank, other: LowRank) -> bool:
    return one.scale == other.scale and same_bits(one.a, other.a) and one.b.dtype == other.b.dtype


def _one_kind(parts: Sequence[LowRank]) -> bool:
    """Whether A, B and scales can be put together without changing type or value."""
    dtypes = {tensor.dtype for part in parts for tensor in (part.a, part.b)}
    return len(dtypes) == 1 and len({part.scale for part in parts}) == 1


def _owners(rows: list[Tensor], rank: int) -> list[int] | None:
    """Which projection each block of ``rank`` columns belongs to; None if there are no blocks."""
    total = rows[0].shape[1]
    blocks, remainder = divmod(total, rank)
    if remainder or not 1 < blocks <= len(rows):
        return None
    owners: list[int] = []
    for block in range(blocks):
        columns = slice(block * rank, (block + 1) * rank)
        users = [i for i, b in enumerate(rows) if b[:, columns].any()]
        # Blocks were stacked in the projections' order; one that is all zero takes the next place.
        after = owners[-1] + 1 if owners else 0
        owner = users[0] if users else after
        if len(users) > 1 or not after <= owner < len(rows):
            return None
        owners.append(owner)
    return owners
