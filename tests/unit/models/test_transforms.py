"""Format changes and tensor-parallel splits undo themselves, and are what Megatron expects."""

from __future__ import annotations

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.models import splits
from mindspeed_llm.models.shape import ModelShape, padded_query_groups
from mindspeed_llm.models.splits import TensorParallel
from mindspeed_llm.models.transforms import FUSE_GATE_UP, FUSE_QKV, RENAME


def shape(heads: int = 6, groups: int = 3, head_dim: int = 2, vocab: int = 11) -> ModelShape:
    return ModelShape(
        num_layers=2,
        hidden_size=5,
        ffn_hidden_size=8,
        num_attention_heads=heads,
        num_query_groups=groups,
        kv_channels=head_dim,
        vocab_size=vocab,
        max_position_embeddings=16,
    )


def numbered(*dims: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(dims).numel())).reshape(dims)


def tensors_for(transform, one: ModelShape, bias: bool) -> tuple[torch.Tensor, ...]:
    rows = {
        RENAME: (7,),
        FUSE_QKV: (one.query_size, one.kv_size, one.kv_size),
        FUSE_GATE_UP: (one.ffn_hidden_size, one.ffn_hidden_size),
    }[transform]
    return tuple(torch.randn((n,) if bias else (n, one.hidden_size)) for n in rows)


@pytest.mark.parametrize("bias", [False, True], ids=["weight", "bias"])
@pytest.mark.parametrize("heads", [(4, 4), (6, 3), (8, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("transform", [RENAME, FUSE_QKV, FUSE_GATE_UP])
def test_inverse_of_forward_is_the_identity(transform, heads, bias) -> None:
    one = shape(*heads)
    tensors = tensors_for(transform, one, bias)
    there = transform.forward(one, tensors)
    back = transform.inverse(one, there)
    assert all(torch.equal(a, b) for a, b in zip(tensors, back, strict=True))
    assert torch.equal(transform.forward(one, back), there)


def test_qkv_rows_are_grouped_as_megatron_reads_them() -> None:
    # 4 query heads, 2 key/value heads of size 1: q0 q1 k0 v0 | q2 q3 k1 v1.
    q, k, v = torch.tensor([0.0, 1, 2, 3]), torch.tensor([10.0, 11]), torch.tensor([20.0, 21])
    fused = FUSE_QKV.forward(shape(4, 2, 1), (q, k, v))
    assert fused.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


SPLITS = {
    "replicated": (splits.REPLICATED, lambda s: (5,)),
    "column": (splits.COLUMN, lambda s: (12, 5)),
    "row": (splits.ROW, lambda s: (5, 12)),
    "gated": (splits.GATED_COLUMN, lambda s: (2 * 12, 5)),
    "vocabulary": (splits.VOCAB_ROWS, lambda s: (s.vocab_size, 5)),
    "qkv": (splits.HEAD_ROWS, lambda s: (s.query_size + 2 * s.kv_size, 5)),
    "qkv bias": (splits.HEAD_ROWS, lambda s: (s.query_size + 2 * s.kv_size,)),
    "attention output": (splits.HEAD_COLUMNS, lambda s: (5, s.query_size)),
}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", SPLITS)
@pytest.mark.parametrize("heads", [(6, 3), (9, 3), (8, 2)])
def test_joining_the_parts_gives_the_whole(heads, name, size) -> None:
    one = shape(*heads)
    split, dims = SPLITS[name]
    full = torch.randn(dims(one))
    padded = -(-one.vocab_size // size) * size + size
    parts = [split.take(full, TensorParallel.of(one, r, size, padded)) for r in range(size)]
    at = TensorParallel.of(one, 0, size, padded)
    assert {tuple(part.shape) for part in parts} == {split.part_dims(full.shape, at)}
    assert torch.equal(split.join(parts, full.shape), full)


def test_each_rank_holds_its_gate_rows_then_its_up_rows() -> None:
    full = torch.arange(8.0).reshape(8, 1)  # gate 0..3, up 4..7
    parts = [splits.GATED_COLUMN.take(full, TensorParallel(r, 2, 0, 1, 1)) for r in range(2)]
    assert [part.flatten().tolist() for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_padding_is_zero_and_at_the_end() -> None:
    one = shape(heads=9, groups=3, head_dim=1, vocab=11)
    assert padded_query_groups(one, 2) == 4
    vocabulary = [
        splits.VOCAB_ROWS.take(numbered(11, 1) + 1, TensorParallel.of(one, r, 2, 16))
        for r in range(2)
    ]
    assert torch.cat(vocabulary).flatten().tolist() == [*range(1, 12), 0, 0, 0, 0, 0]
    qkv = [
        splits.HEAD_ROWS.take(numbered(15, 1) + 1, TensorParallel.of(one, r, 2, 16))
        for r in range(2)
    ]
    assert torch.cat(qkv).flatten().tolist() == [*range(1, 16), 0, 0, 0, 0, 0]


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"12 does not divide .* size 5"):
        splits.COLUMN.take(torch.zeros(12, 2), TensorParallel(0, 5, 0, 1, 1))


def test_copies_that_differ_are_refused() -> None:
    with pytest.raises(UserError, match="ranks 0 and 1 differ"):
        splits.REPLICATED.join([torch.zeros(3), torch.ones(3)], (3,))


def test_copies_with_nan_are_still_copies() -> None:
    norm = torch.tensor([1.0, float("nan")])
    assert splits.REPLICATED.join([norm, norm.clone()], (2,)) is norm
