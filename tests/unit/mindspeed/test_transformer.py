"""Norm and attention as Megatron modules, and the optimizer's stand-ins."""

from __future__ import annotations

import copy

import pytest
import torch

import mindspeed.megatron_adaptor  # noqa: F401
from mindspeed.optimizer.adam import use_fused_adam
from mindspeed.optimizer.gradients import WeightGradient, scale_tensors
from mindspeed.transformer.norm import LayerNorm, Norm, RMSNorm


def config(**fields):
    from megatron.core.transformer import TransformerConfig

    standard = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 4}
    return TransformerConfig(**{**standard, "num_query_groups": 2, **fields})


def test_norms_are_tagged_for_sequence_parallelism():
    parallel = config(sequence_parallel=True, tensor_model_parallel_size=2)
    for kind in (RMSNorm, LayerNorm):
        assert all(p.sequence_parallel for p in kind(parallel, 32).parameters())
        assert not any(p.sequence_parallel for p in kind(config(), 32).parameters())


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_norm_equals_torch(name):
    norm = Norm(config(normalization=name), 32, eps=1e-4)
    reference = getattr(torch.nn, name)(32, eps=1e-4)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    reference.load_state_dict(norm.state_dict())
    x = torch.randn(3, 2, 32)
    torch.testing.assert_close(norm(x), reference(x))


def test_zero_centered_norm_adds_one_to_its_weight():
    plain = RMSNorm(config(), 32)
    centered = RMSNorm(config(layernorm_zero_centered_gamma=True), 32)
    assert not centered.weight.any()
    x = torch.randn(3, 32)
    torch.testing.assert_close(centered(x), plain(x))


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="'L2Norm' is not RMSNorm or LayerNorm"):
        Norm(config(normalization="L2Norm"), 32)


def test_parameters_have_the_dtype_of_the_config():
    assert RMSNorm(config(bf16=True, params_dtype=torch.bfloat16), 8).weight.dtype == torch.bfloat16


def core_attention(**fields):
    from megatron.core.transformer.enums import AttnMaskType

    from mindspeed.transformer.dot_product_attention import DotProductAttention

    fields = {"attention_dropout": 0.0, **fields}
    return DotProductAttention(config(**fields), 1, AttnMaskType.causal, "self")


def by_hand(q, k, v, hidden):
    """Softmax attention in fp64, one head at a time; q [s, b, n, d], hidden [sq, sk] bool."""
    out = torch.empty_like(q, dtype=torch.float64)
    for batch in range(q.shape[1]):
        for head in range(q.shape[2]):
            group = head * k.shape[2] // q.shape[2]
            scores = q[:, batch, head].double() @ k[:, batch, group].double().t()
            weights = (scores / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
            out[:, batch, head] = weights @ v[:, batch, group].double()
    return out.flatten(2).float()


def test_attention_is_causal_and_groups_heads():
    q, k, v = (torch.randn(6, 2, n, 8) for n in (4, 2, 2))
    expected = by_hand(q, k, v, torch.ones(6, 6).triu(1).bool())
    torch.testing.assert_close(core_attention()(q, k, v, None), expected)


def test_attention_takes_an_explicit_mask_and_decodes():
    from megatron.core.transformer.enums import AttnMaskType

    q, k, v = (torch.randn(6, 2, n, 8) for n in (4, 2, 2))
    attention = core_attention()
    hidden = torch.rand(6, 6) < 0.4
    hidden[:, 0] = False
    got = attention(q, k, v, hidden[None, None], AttnMaskType.arbitrary)
    torch.testing.assert_close(got, by_hand(q, k, v, hidden))
    last = attention(q[-1:], k, v, None, AttnMaskType.no_mask)
    torch.testing.assert_close(last, by_hand(q[-1:], k, v, torch.zeros(1, 6).bool()))


def test_attention_refuses_what_it_cannot_do():
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.enums import AttnMaskType

    q, k, v = (torch.randn(6, 2, n, 8) for n in (4, 2, 2))
    with pytest.raises(ValueError, match="packed sequences need causal attention, not no_mask"):
        core_attention()(q, k, v, None, AttnMaskType.no_mask, packed_seq_params=PackedSeqParams())
    with pytest.raises(ValueError, match="only windows to the left"):
        core_attention(window_size=(3, 1))


def test_attention_takes_megatron_s_packed_format():
    """PACK-01: [t, heads, d] with the ends of the sequences; behind the last one is padding."""
    from megatron.core.packed_seq_params import PackedSeqParams

    q, k, v = (torch.randn(9, n, 8) for n in (4, 2, 2))
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=torch.tensor([0, 2, 7]))
    owner = torch.tensor([0, 0, 1, 1, 1, 1, 1, 2, 2])
    hidden = torch.ones(9, 9).triu(1).bool() | (owner[:, None] != owner)
    expected = by_hand(*(x.unsqueeze(1) for x in (q, k, v)), hidden)
    got = core_attention()(q, k, v, None, packed_seq_params=packed)
    torch.testing.assert_close(got, expected.squeeze(1))


@pytest.mark.parametrize("skip, windowed", [(None, True), (2, True), ([0, 1], False)])
def test_attention_with_a_window_in_some_layers(skip, windowed):
    """Megatron's (2, 0): the two tokens before each query, and its own. This is layer 1."""
    q, k, v = (torch.randn(6, 2, n, 8) for n in (4, 2, 2))
    hidden = torch.ones(6, 6).triu(1).bool()
    if windowed:
        hidden |= torch.ones(6, 6).tril(-3).bool()
    attention = core_attention(window_size=(2, 0), window_attn_skip_freq=skip)
    torch.testing.assert_close(attention(q, k, v, None), by_hand(q, k, v, hidden))


def test_scaling_in_place_and_into_another_tensor():
    one, other = torch.ones(3), torch.zeros(3, dtype=torch.float64)
    scale_tensors(0, None, [[one], [one]], 0.5)
    scale_tensors(0, None, [[one], [other]], 4.0)
    assert one.tolist() == [0.5] * 3 and other.tolist() == [2.0] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradient_accumulates(dtype):
    inputs, grad = torch.randn(5, 2, 3, dtype=dtype), torch.randn(5, 2, 4, dtype=dtype)
    main_grad = torch.ones(4, 3)
    WeightGradient.wgrad_gemm_accum_fp32(inputs, grad, main_grad)
    expected = 1 + torch.einsum("sbo,sbi->oi", grad.float(), inputs.float())
    torch.testing.assert_close(main_grad, expected, rtol=1e-2, atol=5e-2)


def step(parameters, optimizer, seed):
    for index, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(seed + index)
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def test_fused_adam_equals_torch_s_and_resumes_bit_identically():
    start = [torch.randn(5, 3), torch.randn(7)]
    runs = []
    for fused in (False, True):
        parameters = copy.deepcopy(start)
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        if fused:
            use_fused_adam(optimizer)
        for seed in range(3):
            step(parameters, optimizer, seed)
        runs.append((parameters, optimizer))
    for plain, fused_one in zip(runs[0][0], runs[1][0], strict=True):
        torch.testing.assert_close(fused_one, plain)

    # A state saved by the plain form must be continued by the fused one, and exactly.
    parameters, optimizer = copy.deepcopy(runs[1][0]), None
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    use_fused_adam(optimizer)
    saved = copy.deepcopy(runs[1][1].state_dict())
    saved["param_groups"][0]["fused"] = None
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["fused"]
    step(parameters, optimizer, 9)
    step(*runs[1], 9)
    assert all(map(torch.equal, parameters, runs[1][0]))
