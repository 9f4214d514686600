"""LoRA adapters in conversion, against the ``peft`` package."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint import adapters
from tests.unit.checkpoint.tiny import to_hf, to_mg, weights

pytest.importorskip("peft")

FAMILIES = ["llama", "qwen2", "qwen3", "glm4_9b", "phi3.5"]


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_hf_weights_are_those_of_peft(family, tiny_lora, scratch) -> None:
    base, adapter = tiny_lora(family)
    root = to_mg(base, scratch / "mg", tp=2, pp=2)
    out = to_hf(root, scratch / "hf", "--lora-load", str(adapter))
    adapters.assert_close(weights(out), adapters.merged_by_peft(base, adapter))
    same = weights(out)["model.norm.weight"]
    assert torch.equal(same, weights(base)["model.norm.weight"])


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_to_megatron_and_back_adds_the_same(family, tiny_lora, scratch) -> None:
    base, adapter = tiny_lora(family)
    mg = to_mg(base, scratch / "a", "--lora-load", str(adapter), "--save-lora-to-mg", tp=2, pp=2)
    one = to_mg(base, scratch / "b", "--lora-load", str(mg), "--save-lora-to-mg")
    kind = ("--load-model-type", "hf")
    back = to_hf(base, scratch / "hf", *kind, "--lora-load", str(one), "--save-lora-to-hf")
    before, after = adapters.deltas(adapter), adapters.deltas(back)
    assert before.keys() == after.keys()
    for module, delta in before.items():
        assert torch.equal(delta, after[module]), module
    config = json.loads((back / "adapter_config.json").read_text())
    original = json.loads((adapter / "adapter_config.json").read_text())
    for key in ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"):
        assert config[key] == original[key], key
    assert sorted(config["target_modules"]) == sorted(original["target_modules"])


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}, {"tp": 4, "pp": 4}])
def test_merge_into_megatron_at_any_layout(layout, tiny_lora, scratch) -> None:
    """Parts are merged from each rank's halves; TP4 is more than the key/value heads."""
    base, adapter = tiny_lora("qwen3")
    root = to_mg(base, scratch / "mg", "--lora-load", str(adapter), **layout)
    adapters.assert_close(
        weights(to_hf(root, scratch / "hf")), adapters.merged_by_peft(base, adapter)
    )


def test_hf_base_to_hf_and_megatron_adapter_into_megatron_base(tiny_lora, scratch) -> None:
    """The four combinations of base and adapter give the same bits."""
    base, adapter = tiny_lora("llama")
    mg_base = to_mg(base, scratch / "base", tp=2)
    given = ("--lora-load", str(adapter))
    mg_adapter = to_mg(base, scratch / "adapter", *given, "--save-lora-to-mg", tp=2, pp=2)
    expected = adapters.merged_by_peft(base, adapter)
    for number, (folder, kind) in enumerate([(base, "hf"), (mg_base, "mg")]):
        for lora in (adapter, mg_adapter):
            out = scratch / f"{number}-{lora.name}"
            to_hf(folder, out, "--load-model-type", kind, "--lora-load", str(lora))
            adapters.assert_close(weights(out), expected)


def test_logits_of_the_merged_model(tiny_lora, scratch) -> None:
    """The merged Megatron model says what ``peft`` says with the adapter beside the base."""
    base, adapter = tiny_lora("qwen3")
    root = to_mg(base, scratch / "mg", "--lora-load", str(adapter), tp=2, pp=2)
    merged = to_hf(root, scratch / "hf")
    ids = torch.arange(1, 34).unsqueeze(0)
    expected = adapters.logits(base, adapter, ids)
    found = adapters.logits(merged, None, ids)
    far = adapters.logits(base, None, ids)
    limit = 1e-5 * expected.abs().max()
    assert (found - expected).abs().max() < limit
    assert (far - expected).abs().max() > 1000 * limit


def test_bf16_base_is_rounded_once(tiny_lora, scratch) -> None:
    base, adapter = tiny_lora("llama")
    half = to_hf(to_mg(base, scratch / "mg", "--params-dtype", "bf16", tp=2), scratch / "half")
    out = to_hf(half, scratch / "out", "--load-model-type", "hf", "--lora-load", str(adapter))
    deltas, before, after = adapters.deltas(adapter), weights(half), weights(out)
    for module, delta in deltas.items():
        exact = before[f"{module}.weight"].double() + delta
        found = after[f"{module}.weight"]
        assert found.dtype == torch.bfloat16
        # Half a unit in the last place of bf16, and what fp32 loses before that.
        assert ((found.double() - exact).abs() <= exact.abs() * (2.0**-8) + 1e-6).all(), module


def test_only_some_projections_have_an_adapter(tiny_lora, scratch) -> None:
    """Keys have none here, so their rows of the fused weight stay bit by bit."""
    base, _ = tiny_lora("qwen3")
    adapter = adapters.make(base, scratch / "adapter", ["q_proj", "v_proj"], rank=4)
    given = ("--lora-load", str(adapter))
    merged = to_hf(to_mg(base, scratch / "mg", *given, tp=2), scratch / "hf")
    adapters.assert_close(weights(merged), adapters.merged_by_peft(base, adapter))
    name = "model.layers.1.self_attn.k_proj.weight"
    assert torch.equal(weights(merged)[name], weights(base)[name])
    mg = to_mg(base, scratch / "a", *given, "--save-lora-to-mg", tp=2)
    back = to_hf(mg, scratch / "back", "--save-lora-to-hf")
    before, after = adapters.deltas(adapter), adapters.deltas(back)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[module], after[module]) for module in before)


PATTERNS = {
    "rank_pattern": {"q_proj": 3, r"^model\.layers\.1\.mlp\.down_proj": 2},
    "alpha_pattern": {"k_proj": 5, "layers.2.self_attn.o_proj": 7},
}


@pytest.mark.parametrize("use_rslora", [False, True])
def test_ranks_and_alphas_of_single_modules(use_rslora, tiny_lora, scratch) -> None:
    base, _ = tiny_lora("llama")
    adapter = adapters.make(base, scratch / "adapter", use_rslora=use_rslora, **PATTERNS)
    given = ("--lora-load", str(adapter))
    merged = to_hf(to_mg(base, scratch / "mg", *given, tp=2), scratch / "hf")
    adapters.assert_close(weights(merged), adapters.merged_by_peft(base, adapter))
    mg = to_mg(base, scratch / "a", *given, "--save-lora-to-mg", tp=2, pp=2)
    back = to_hf(mg, scratch / "back", "--save-lora-to-hf")
    adapters.assert_close(
        adapters.merged_by_peft(base, back), adapters.merged_by_peft(base, adapter)
    )


@pytest.mark.soak
@pytest.mark.parametrize("direction", ["mg to hf", "mg adapter", "bf16"])
def test_the_conversion_checks_itself_with_the_adapter(
    direction, tiny_lora, scratch, capsys
) -> None:
    """Logits are compared with a model that has the adapter too, not with the bare base."""
    base, adapter = tiny_lora("qwen3")
    given, checks = ("--lora-load", str(adapter)), ("--verify", "logits")
    if direction == "mg to hf":
        to_hf(to_mg(base, scratch / "mg", tp=2), scratch / "hf", *given, *checks)
    elif direction == "bf16":
        to_mg(base, scratch / "mg", *given, *checks, "--params-dtype", "bf16")
    else:
        pairs = to_mg(base, scratch / "pairs", *given, "--save-lora-to-mg")
        to_mg(base, scratch / "mg", "--lora-load", str(pairs), *checks)
    assert "✓ logits" in capsys.readouterr().out


@pytest.mark.soak
def test_a_wrongly_merged_weight_fails_the_check(tiny_lora, scratch, monkeypatch) -> None:
    from mindspeed_llm.checkpoint.lora import merge

    add = merge.add
    monkeypatch.setattr(merge, "add", lambda rows, pair: add(rows, replace(pair, scale=0.0)))
    base, adapter = tiny_lora("qwen3")
    with pytest.raises(UserError, match=r"failed its check \(logits\)"):
        to_mg(base, scratch / "mg", "--lora-load", str(adapter), "--verify", "logits")
