"""Every fused form against its plain reference: values, gradients, and the analytic derivative."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mindspeed.ops import attention as attention_op
from mindspeed.ops import cross_entropy as cross_entropy_op
from mindspeed.ops import dispatch, linear_cross_entropy
from mindspeed.ops import packed_attention as packed_attention_op
from mindspeed.ops import rms_norm as rms_norm_op
from mindspeed.ops import rope as rope_op
from mindspeed.ops import swiglu as swiglu_op

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _restore_level():
    torch.manual_seed(0)
    yield
    dispatch.set_level(2)


def results(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The value of ``function`` and its gradients at ``inputs``, for a fixed output gradient."""
    leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    value = function(*leaves)
    grad = torch.linspace(-1, 1, value.numel()).view(value.shape).to(value.dtype)
    value.backward(grad)
    return [value.detach(), *(x.grad for x in leaves if x.requires_grad)]


def assert_same(function: Callable[..., Tensor], inputs: list[Tensor], tolerance: float) -> None:
    """Level 0 and level 2 agree, relative to the largest element of each result."""
    dispatch.set_level(0)
    expected = results(function, inputs)
    dispatch.set_level(2)
    for got, want in zip(results(function, inputs), expected, strict=True):
        assert got.dtype == want.dtype
        scale = want.abs().max()
        assert (got - want).abs().max() <= tolerance * scale


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm(dtype):
    x, weight = torch.randn(5, 3, 32, dtype=dtype), torch.randn(32, dtype=dtype)
    assert_same(lambda x, w: rms_norm_op.rms_norm(x, w, 1e-5), [x, weight], TOLERANCE[dtype])


def test_rms_norm_of_a_transposed_input_and_gradient():
    x, weight = torch.randn(4, 6, 16), torch.randn(16)

    def function(x, w):
        return rms_norm_op.rms_norm(x.transpose(0, 1), w, 1e-5).transpose(0, 1).contiguous()

    assert_same(function, [x, weight], 1e-6)


def test_rms_norm_equals_torch():
    x, weight = torch.randn(7, 32), torch.randn(32)
    expected = torch.nn.functional.rms_norm(x, (32,), weight, 1e-5)
    torch.testing.assert_close(rms_norm_op.rms_norm(x, weight, 1e-5), expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_swiglu(dtype):
    assert_same(swiglu_op.swiglu, [torch.randn(5, 3, 24, dtype=dtype)], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rotated", [8, 4])
def test_rope(dtype, rotated):
    angles = torch.randn(6, 1, 1, rotated // 2).repeat(1, 1, 1, 2)
    x = torch.randn(6, 2, 3, 8, dtype=dtype)
    assert_same(lambda x: rope_op.rope(x, angles, 1.3), [x], TOLERANCE[dtype])


def test_rope_turns_pairs_of_features():
    angle = torch.tensor(0.3)
    x = torch.tensor([2.0, 5.0]).view(1, 1, 1, 2)
    got = rope_op.rope(x, angle.expand(1, 1, 1, 2)).flatten()
    expected = torch.stack((2 * angle.cos() - 5 * angle.sin(), 5 * angle.cos() + 2 * angle.sin()))
    torch.testing.assert_close(got, expected)


def test_rope_follows_angles_that_change():
    angles = torch.zeros(3, 1, 1, 4)
    x = torch.randn(3, 1, 1, 4)
    torch.testing.assert_close(rope_op.rope(x, angles), x)
    angles.fill_(torch.pi)
    torch.testing.assert_close(rope_op.rope(x, angles), -x)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", ["causal", "mask", "full"])
def test_attention(dtype, groups, kind):
    q, k, v = (torch.randn(10, 2, n, 8, dtype=dtype) for n in (4, groups, groups))
    hidden = torch.rand(2, 1, 10, 10) < 0.3
    hidden[..., 0] = False  # every query sees something
    function = lambda q, k, v: attention_op.attention(  # noqa: E731
        q, k, v, scale=0.35, causal=kind == "causal", mask=hidden if kind == "mask" else None
    )
    assert_same(function, [q, k, v], TOLERANCE[dtype])


@pytest.mark.parametrize("sequence", [7, 130, 300])
def test_attention_in_bf16_at_several_lengths(sequence):
    """bf16 against the formula in fp64."""
    inputs = [torch.randn(sequence, 2, n, 16) for n in (6, 2, 2)]

    def function(q, k, v):
        return attention_op.attention(q, k, v, scale=0.25, causal=True)

    dispatch.set_level(0)
    expected = results(function, [x.bfloat16().double() for x in inputs])
    dispatch.set_level(2)
    got = results(function, [x.bfloat16() for x in inputs])
    for one, other in zip(got, expected, strict=True):
        assert (one.double() - other).abs().max() <= 1e-2 * other.abs().max()


@pytest.mark.parametrize("queries", [1, 3])
def test_attention_of_the_last_queries_with_a_cache(queries):
    q, k, v = (torch.randn(9, 2, n, 8) for n in (4, 2, 2))
    whole = attention_op.attention(q, k, v, scale=0.35, causal=True)
    last = attention_op.attention(q[-queries:], k, v, scale=0.35, causal=True)
    torch.testing.assert_close(last, whole[-queries:])


def test_attention_with_soft_capped_scores():
    q, k, v = (3 * torch.randn(5, 1, 2, 8) for _ in range(3))
    got = attention_op.attention(q, k, v, scale=1.0, causal=False, softcap=2.0)
    heads = [
        (2 * torch.tanh(q[:, 0, n] @ k[:, 0, n].t() / 2)).softmax(-1) @ v[:, 0, n] for n in range(2)
    ]
    torch.testing.assert_close(got[:, 0], torch.cat(heads, dim=-1))


def test_attention_dropout_drops():
    q, k, v = (torch.randn(16, 2, 2, 8) for _ in range(3))
    torch.manual_seed(1)
    first = attention_op.attention(q, k, v, scale=0.35, causal=True, dropout=0.5)
    assert not torch.equal(first, attention_op.attention(q, k, v, scale=0.35, causal=True))
    torch.manual_seed(1)
    again = attention_op.attention(q, k, v, scale=0.35, causal=True, dropout=0.5)
    assert torch.equal(first, again)


LABELS = torch.tensor([[0, 1, 36, -100, 5], [7, 7, 20, 3, 2]])


@pytest.mark.parametrize("keep_bytes", [1 << 30, 4 * 40 * 8 * 3])
def test_linear_cross_entropy_of_soft_capped_logits(keep_bytes, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "KEEP_BYTES", keep_bytes)
    hidden, weight = torch.randn(5, 2, 16), torch.randn(40, 16)
    labels = LABELS.clamp(min=0)

    def ours(hidden, weight):
        return linear_cross_entropy.linear_cross_entropy(hidden, weight, labels, softcap=2.0)

    def torchs(hidden, weight):
        logits = 2 * torch.tanh(hidden @ weight.t() / 2)
        return torch.nn.functional.cross_entropy(logits.permute(1, 2, 0), labels, reduction="none")

    for one, other in zip(
        results(ours, [hidden, weight]), results(torchs, [hidden, weight]), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_cross_entropy(dtype):
    logits = 4 * torch.randn(2, 5, 37, dtype=dtype)
    function = lambda x: cross_entropy_op.vocab_parallel_cross_entropy(x, LABELS)  # noqa: E731
    assert_same(function, [logits], TOLERANCE[dtype])


def test_cross_entropy_equals_torch():
    logits, labels = torch.randn(2, 5, 37), LABELS.clamp(min=0)
    expected = torch.nn.functional.cross_entropy(
        logits.view(-1, 37), labels.view(-1), reduction="none"
    )
    got = cross_entropy_op.vocab_parallel_cross_entropy(logits, labels)
    torch.testing.assert_close(got.view(-1), expected)


def test_cross_entropy_of_a_hopeless_token_is_finite():
    logits = torch.tensor([[[0.0, 300.0, -300.0]]])
    loss = cross_entropy_op.vocab_parallel_cross_entropy(logits, torch.tensor([[2]]))
    assert loss.item() == pytest.approx(600.0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("vocab_size", [None, 37])
@pytest.mark.parametrize("keep_bytes", [1 << 30, 1 << 10], ids=["kept", "recomputed"])
def test_linear_cross_entropy(dtype, vocab_size, keep_bytes, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "KEEP_BYTES", keep_bytes)
    hidden, weight = torch.randn(5, 2, 16, dtype=dtype), torch.randn(40, 16, dtype=dtype)

    def function(hidden, weight):
        return linear_cross_entropy.linear_cross_entropy(
            hidden, weight, LABELS, vocab_size=vocab_size
        )

    assert_same(function, [hidden, weight], TOLERANCE[dtype])


def test_linear_cross_entropy_leaves_padding_rows_out():
    hidden, weight = torch.randn(5, 2, 16), torch.randn(40, 16, requires_grad=True)
    compute = linear_cross_entropy.linear_cross_entropy
    loss = compute(hidden, weight, LABELS, vocab_size=37)
    loss.sum().backward()
    torch.testing.assert_close(loss, compute(hidden, weight[:37], LABELS))
    assert not weight.grad[37:].any()


def test_linear_cross_entropy_without_gradient_keeps_nothing():
    hidden, weight = torch.randn(5, 2, 16), torch.randn(40, 16)
    loss = linear_cross_entropy.linear_cross_entropy(hidden, weight, LABELS)
    assert loss.dtype == torch.float32 and loss.grad_fn is None and loss.shape == (2, 5)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_derivatives_are_those_of_the_function():
    """Numerical differentiation in fp64 of every fused form."""
    angles = torch.randn(3, 1, 1, 2, dtype=torch.float64).repeat(1, 1, 1, 2)
    labels = torch.tensor([[0, 5, 2], [1, -100, 4]])
    check = torch.autograd.gradcheck
    assert check(lambda x, w: rms_norm_op.rms_norm(x, w, 1e-3), (double(3, 2, 4), double(4)))
    assert check(swiglu_op.swiglu, (double(2, 3, 8),))
    assert check(lambda x: rope_op.rope(x, angles), (double(3, 2, 2, 4),))
    assert check(
        lambda x: cross_entropy_op.vocab_parallel_cross_entropy(x, labels), (double(2, 3, 6),)
    )
    assert check(
        lambda h, w: linear_cross_entropy.linear_cross_entropy(h, w, labels, vocab_size=6),
        (double(3, 2, 4), double(8, 4)),
    )


def test_start_up_report_names_the_forms():
    dispatch.set_level(0)
    assert set(dispatch.ops_in_use().values()) == {dispatch.REFERENCE}
    dispatch.set_level(2)
    used = dispatch.ops_in_use()
    assert "sdpa" in used["attention"] and dispatch.REFERENCE not in used.values()


LENGTHS = [7, 1, 12, 4, 8, 8]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "more", [{}, {"window": 3}, {"softcap": 2.0}, {"window": 5, "softcap": 2.0}], ids=str
)
def test_packed_attention(dtype, more):
    """PACK-01: against one mask over all tokens; grouped heads, values of another width."""
    q, k, v = (torch.randn(20, 2, *last, dtype=dtype) for last in ((4, 8), (2, 8), (2, 6)))

    def function(q, k, v):
        return packed_attention_op.packed_attention(q, k, v, LENGTHS, scale=0.3, **more)

    assert function(q, k, v).shape == (20, 2, 24)
    assert_same(function, [q, k, v], TOLERANCE[dtype])


def test_packed_attention_needs_the_lengths_of_all_tokens():
    q = torch.randn(20, 2, 4, 8)
    with pytest.raises(ValueError, match="6 sequences of 40 tokens in 2 rows of 19"):
        packed_attention_op.packed_attention(q[1:], q[1:], q[1:], LENGTHS, scale=1.0)


def test_packed_attention_drops_weights_in_training():
    q, k, v = (torch.randn(20, 2, 4, 8) for _ in range(3))
    found = packed_attention_op.packed_attention(q, k, v, LENGTHS, scale=0.3, dropout=0.5)
    plain = packed_attention_op.packed_attention(q, k, v, LENGTHS, scale=0.3)
    assert not torch.allclose(found, plain)
    many = [
        packed_attention_op.packed_attention(q, k, v, LENGTHS, scale=0.3, dropout=0.5)
        for _ in range(400)
    ]
    torch.testing.assert_close(torch.stack(many).mean(0), plain, rtol=0, atol=0.6)
