"""LoRA adapters in conversion, against the ``peft`` package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mindspeed.errors import UserError
from tests.families import write_tiny_hf
from tests.unit.checkpoint import adapters
from tests.unit.checkpoint.tiny import to_hf, to_mg, weights

pytest.importorskip("peft")

FAMILIES = ["llama", "qwen2", "qwen3", "glm4_9b", "phi3.5"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """``made(family)``: (base model, adapter), made once; do not change them."""
    root = tmp_path_factory.mktemp("lora")

    def get(family: str) -> tuple[Path, Path]:
        base, adapter = root / family, root / f"{family}-adapter"
        if not base.exists():
            write_tiny_hf(base, family)
            adapters.make(base, adapter, adapters.TARGETS.get(family))
        return base, adapter

    return get


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal but for the last bit of fp32 (the order of one multiplication and addition)."""
    for name, tensor in found.items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1.2e-7, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_hf_weights_are_those_of_peft(family, made, scratch) -> None:
    base, adapter = made(family)
    root = to_mg(base, scratch / "mg", tp=2, pp=2)
    out = to_hf(root, scratch / "hf", "--lora-load", str(adapter))
    assert_close(weights(out), adapters.merged_by_peft(base, adapter))
    same = weights(out)["model.norm.weight"]
    assert torch.equal(same, weights(base)["model.norm.weight"])


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_to_megatron_and_back_adds_the_same(family, made, scratch) -> None:
    base, adapter = made(family)
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
def test_merge_into_megatron_at_any_layout(layout, made, scratch) -> None:
    """Parts are merged from each rank's halves; TP4 is more than the key/value heads."""
    base, adapter = made("qwen3")
    root = to_mg(base, scratch / "mg", "--lora-load", str(adapter), **layout)
    assert_close(weights(to_hf(root, scratch / "hf")), adapters.merged_by_peft(base, adapter))


def test_hf_base_to_hf_and_megatron_adapter_into_megatron_base(made, scratch) -> None:
    """The four combinations of base and adapter give the same bits."""
    base, adapter = made("llama")
    mg_base = to_mg(base, scratch / "base", tp=2)
    given = ("--lora-load", str(adapter))
    mg_adapter = to_mg(base, scratch / "adapter", *given, "--save-lora-to-mg", tp=2, pp=2)
    expected = adapters.merged_by_peft(base, adapter)
    for number, (folder, kind) in enumerate([(base, "hf"), (mg_base, "mg")]):
        for lora in (adapter, mg_adapter):
            out = scratch / f"{number}-{lora.name}"
            to_hf(folder, out, "--load-model-type", kind, "--lora-load", str(lora))
            assert_close(weights(out), expected)


def test_logits_of_the_merged_model(made, scratch) -> None:
    """The merged Megatron model says what ``peft`` says with the adapter beside the base."""
    base, adapter = made("qwen3")
    root = to_mg(base, scratch / "mg", "--lora-load", str(adapter), tp=2, pp=2)
    merged = to_hf(root, scratch / "hf")
    ids = torch.arange(1, 34).unsqueeze(0)
    expected = adapters.logits(base, adapter, ids)
    found = adapters.logits(merged, None, ids)
    far = adapters.logits(base, None, ids)
    limit = 1e-5 * expected.abs().max()
    assert (found - expected).abs().max() < limit
    assert (far - expected).abs().max() > 1000 * limit


def test_bf16_base_is_rounded_once(made, scratch) -> None:
    base, adapter = made("llama")
    half = to_hf(to_mg(base, scratch / "mg", "--params-dtype", "bf16", tp=2), scratch / "half")
    out = to_hf(half, scratch / "out", "--load-model-type", "hf", "--lora-load", str(adapter))
    deltas, before, after = adapters.deltas(adapter), weights(half), weights(out)
    for module, delta in deltas.items():
        exact = before[f"{module}.weight"].double() + delta
        found = after[f"{module}.weight"]
        assert found.dtype == torch.bfloat16
        # Half a unit in the last place of bf16, and what fp32 loses before that.
        assert ((found.double() - exact).abs() <= exact.abs() * (2.0**-8) + 1e-6).all(), module


def test_only_some_projections_have_an_adapter(made, scratch) -> None:
    """Keys have none here, so their rows of the fused weight stay bit by bit."""
    base, _ = made("qwen3")
    adapter = adapters.make(base, scratch / "adapter", ["q_proj", "v_proj"], rank=4)
    given = ("--lora-load", str(adapter))
    merged = to_hf(to_mg(base, scratch / "mg", *given, tp=2), scratch / "hf")
    assert_close(weights(merged), adapters.merged_by_peft(base, adapter))
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
def test_ranks_and_alphas_of_single_modules(use_rslora, made, scratch) -> None:
    base, _ = made("llama")
    adapter = adapters.make(base, scratch / "adapter", use_rslora=use_rslora, **PATTERNS)
    given = ("--lora-load", str(adapter))
    merged = to_hf(to_mg(base, scratch / "mg", *given, tp=2), scratch / "hf")
    assert_close(weights(merged), adapters.merged_by_peft(base, adapter))
    mg = to_mg(base, scratch / "a", *given, "--save-lora-to-mg", tp=2, pp=2)
    back = to_hf(mg, scratch / "back", "--save-lora-to-hf")
    assert_close(adapters.merged_by_peft(base, back), adapters.merged_by_peft(base, adapter))


def trained_in_megatron(base: Path, root: Path, tp: int = 2) -> Path:
    """An adapter as a trainer leaves it: one A for all of linear_qkv, of the adapter's rank."""
    source = adapters.make(base, root / "seed", ["o_proj", "down_proj"], rank=4, lora_alpha=8)
    kinds = ("--save-lora-to-mg", "--lora-load", str(source))
    folder = to_mg(base, root / "trained", *kinds, tp=tp)
    generator = torch.Generator().manual_seed(0)
    shared = [torch.randn(4, 64, generator=generator) for _ in range(8)]
    for file in sorted(folder.glob("iter_*/*/*.pt")):
        content = torch.load(file, weights_only=False)
        for layer in range(4):
            prefix = f"decoder.layers.{layer}"
            sizes = {"self_attention.linear_qkv": 192 // tp, "mlp.linear_fc1": 192 // tp}
            for number, (name, rows) in enumerate(sizes.items()):
                a, b = shared[2 * layer + number], torch.randn(rows, 4, generator=generator)
                content["model"][f"{prefix}.{name}.lora_A.default.weight"] = 0.1 * a
                content["model"][f"{prefix}.{name}.lora_B.default.weight"] = 0.1 * b
        args = content["args"]
        args.lora_target_modules = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
        del args.lora_pairs
        torch.save(content, file)
    return folder


def test_adapter_trained_in_megatron_is_exported_and_imported_again(made, scratch) -> None:
    """Every projection gets the shared A and its rows of B; the way back is bit-equal."""
    base, _ = made("qwen3")
    native = trained_in_megatron(base, scratch)
    peft = to_hf(native, scratch / "peft", "--save-lora-to-hf")
    config = json.loads((peft / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (4, 8, {})
    assert sorted(config["target_modules"]) == sorted(adapters.SEPARATE)
    kind = ("--load-model-type", "hf")
    merged = to_hf(base, scratch / "merged", *kind, "--lora-load", str(native))
    assert_close(weights(merged), adapters.merged_by_peft(base, peft))
    again = to_mg(base, scratch / "again", "--lora-load", str(peft), "--save-lora-to-mg", tp=2)
    for file in sorted(native.glob("iter_*/*/*.pt")):
        other = again / file.relative_to(native)
        before, after = (torch.load(path, weights_only=False)["model"] for path in (file, other))
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name]), name


def unified(base: Path, adapter: Path, target: Path, prefix: str = "base_model.model.") -> Path:
    """Weights and adapter in the same rank files, as a trainer without a filter saves them."""
    shutil.copytree(base, target)
    for file in sorted(target.glob("iter_*/*/*.pt")):
        content = torch.load(file, weights_only=False)
        other = torch.load(adapter / file.relative_to(target), weights_only=False)
        adapted = {name.split(".lora_")[0] for name in other["model"]}
        weights = {
            name.replace(".weight", ".base_layer.weight")
            if name.removesuffix(".weight") in adapted
            else name: tensor
            for name, tensor in content["model"].items()
        }
        both = {**weights, **other["model"]}
        content["model"] = {prefix + name: tensor for name, tensor in both.items()}
        content["args"] = other["args"]
        torch.save(content, file)
    return target


@pytest.mark.parametrize("prefix", ["", "base_model.model."])
def test_weights_and_adapter_in_the_same_files(prefix, made, scratch) -> None:
    """Without --lora-load, the adapter beside the weights is merged."""
    base, adapter = made("qwen3")
    sizes = {"tp": 2, "pp": 2}
    weights_only = to_mg(base, scratch / "base", **sizes)
    pairs = to_mg(
        base, scratch / "pairs", "--lora-load", str(adapter), "--save-lora-to-mg", **sizes
    )
    both = unified(weights_only, pairs, scratch / "both", prefix)
    expected = adapters.merged_by_peft(base, adapter)
    assert_close(weights(to_hf(both, scratch / "hf", "--lora-r", "6")), expected)
    # As an adapter of its own, for a base elsewhere, and to PEFT.
    given = ("--lora-load", str(both))
    assert_close(weights(to_hf(weights_only, scratch / "again", *given)), expected)
    peft = to_hf(both, scratch / "peft", "--save-lora-to-hf")
    before, after = adapters.deltas(adapter), adapters.deltas(peft)
    assert all(torch.equal(before[module], after[module]) for module in before)


REFUSED_FLAGS = [
    ("--lora-r 8", r"--lora-r 8, but the adapter has rank 6"),
    ("--lora-alpha 16", r"--lora-alpha 16, but the adapter has alpha 11"),
    ("--lora-target-modules linear_qkv", r"linear_qkv, but the adapter is for linear_fc1 linear_f"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED_FLAGS)
@pytest.mark.parametrize("kind", ["peft", "megatron"])
def test_contradicting_flags_are_refused(flags, message, kind, made, scratch) -> None:
    base, adapter = made("llama")
    if kind == "megatron":
        given = ("--lora-load", str(adapter), "--save-lora-to-mg")
        adapter = to_mg(base, scratch / "adapter", *given, tp=2)
    with pytest.raises(UserError, match=message):
        to_mg(base, scratch / "mg", "--lora-load", str(adapter), *flags.split())
    assert not (scratch / "mg").exists()


def test_agreeing_flags_are_accepted(made, scratch) -> None:
    base, adapter = made("llama")
    flags = "--lora-r 6 --lora-alpha 11 --lora-target-modules"
    targets = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    to_mg(base, scratch / "mg", "--lora-load", str(adapter), *flags.split(), *targets)


@pytest.mark.parametrize("flags", ["--lora-r 8", "--lora-alpha 3", "--lora-target-modules x"])
def test_flags_without_any_adapter_are_refused(flags, made, scratch) -> None:
    with pytest.raises(UserError, match=r"there is no adapter"):
        to_mg(made("llama")[0], scratch / "mg", *flags.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "all"}, "trained biases"),
        ({"modules_to_save": ["lm_head"]}, "whole modules"),
        ({"peft_type": "IA3"}, "this is a IA3 adapter"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base weights"),
        ({"fan_in_fan_out": True}, "transposed"),
        ({"use_new_idea": True}, "an option that is not known here"),
        ({"r": 7}, "expected .* by adapter_config.json"),
        ({"target_modules": ["q_proj", "lm_head"]}, "names lm_head, but no pair is for it"),
    ],
)
def test_other_kinds_of_adapters_are_refused(change, message, made, scratch) -> None:
    base, adapter = made("llama")
    own = Path(shutil.copytree(adapter, scratch / "own"))
    config = json.loads((own / "adapter_config.json").read_text())
    (own / "adapter_config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(UserError, match=message):
        to_mg(base, scratch / "mg", "--lora-load", str(own))


@pytest.mark.parametrize(
    ("drop", "add", "message"),
    [
        ("model.layers.2.mlp.up_proj", None, "layers.2.mlp.up_proj has no pair, other layers"),
        ("model.layers.2.mlp.up_proj.lora_A", None, "the other half of .*up_proj.lora_B"),
        (None, "base_model.model.lm_head.weight", "not LoRA pairs of linear layers"),
        (None, "base_model.model.model.embed_tokens.lora_embedding_A", "not LoRA pairs"),
    ],
)
def test_incomplete_and_foreign_tensors_are_named(drop, add, message, made, scratch) -> None:
    from safetensors.torch import load_file, save_file

    base, adapter = made("llama")
    own = Path(shutil.copytree(adapter, scratch / "own"))
    file = own / "adapter_model.safetensors"
    kept = {name: t for name, t in load_file(file).items() if drop is None or drop not in name}
    save_file({**kept, **({add: torch.zeros(2, 2)} if add else {})}, file)
    with pytest.raises(UserError, match=message):
        to_mg(base, scratch / "mg", "--lora-load", str(own))


def test_an_adapter_for_another_model_is_refused(made, scratch) -> None:
    llama, phi = made("llama"), made("phi3.5")
    with pytest.raises(UserError, match=r"the model has no linear layer .*qkv_proj"):
        to_mg(llama[0], scratch / "mg", "--lora-load", str(phi[1]))
    write_tiny_hf(scratch / "wide", "llama", intermediate_size=128)
    with pytest.raises(UserError, match=r"gate_proj.lora_B.* has size \[96, 6\], expected \[128"):
        to_mg(scratch / "wide", scratch / "mg", "--lora-load", str(llama[1]))
    given = ("--lora-load", str(llama[1]), "--save-lora-to-mg")
    pairs = to_mg(llama[0], scratch / "pairs", *given)
    with pytest.raises(UserError, match=r"ffn_hidden_size: adapter 96, model 128"):
        to_mg(scratch / "wide", scratch / "mg", "--lora-load", str(pairs))
    with pytest.raises(UserError, match="without the weights that it belongs to"):
        to_hf(pairs, scratch / "hf")


def test_bin_files_of_older_peft(made, scratch) -> None:
    from safetensors.torch import load_file

    base, adapter = made("llama")
    own = Path(shutil.copytree(adapter, scratch / "own"))
    torch.save(load_file(own / "adapter_model.safetensors"), own / "adapter_model.bin")
    (own / "adapter_model.safetensors").unlink()
    root = to_mg(base, scratch / "mg", "--lora-load", str(own))
    assert_close(weights(to_hf(root, scratch / "hf")), adapters.merged_by_peft(base, adapter))


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["mg to hf", "mg adapter", "bf16"])
def test_the_conversion_checks_itself_with_the_adapter(direction, made, scratch, capsys) -> None:
    """Logits are compared with a model that has the adapter too, not with the bare base."""
    base, adapter = made("qwen3")
    given, checks = ("--lora-load", str(adapter)), ("--verify", "logits")
    if direction == "mg to hf":
        to_hf(to_mg(base, scratch / "mg", tp=2), scratch / "hf", *given, *checks)
    elif direction == "bf16":
        to_mg(base, scratch / "mg", *given, *checks, "--params-dtype", "bf16")
    else:
        pairs = to_mg(base, scratch / "pairs", *given, "--save-lora-to-mg")
        to_mg(base, scratch / "mg", "--lora-load", str(pairs), *checks)
    assert "✓ logits" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrongly_merged_weight_fails_the_check(made, scratch, monkeypatch) -> None:
    from mindspeed_llm.checkpoint.lora import merge

    add = merge.add
    monkeypatch.setattr(merge, "add", lambda rows, pair: add(rows, replace(pair, scale=0.0)))
    base, adapter = made("qwen3")
    with pytest.raises(UserError, match=r"failed its check \(logits\)"):
        to_mg(base, scratch / "mg", "--lora-load", str(adapter), "--verify", "logits")


def per_expert(base: Path, folder: Path, modules: list[str], rank: int = 3) -> dict[str, Tensor]:
    """An adapter of layers that ``transformers`` fuses in memory, under their names on disk.

    Returns:
        What it adds to each module's weight.
    """
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    shapes = {name.removesuffix(".weight"): t.shape for name, t in weights(base).items()}
    tensors, added = {}, {}
    for module in (m for m in shapes if any(m.endswith(f".{end}") for end in modules)):
        out, width = shapes[module]
        a = 0.1 * torch.randn(rank, width, generator=generator)
        b = 0.1 * torch.randn(out, rank, generator=generator)
        tensors[f"base_model.model.{module}.lora_A.weight"] = a
        tensors[f"base_model.model.{module}.lora_B.weight"] = b
        added[module] = 2.0 * (b.double() @ a.double())
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return added


EXPERTS = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "gate"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "down_proj"]
PARALLEL = ["--target-expert-parallel-size", "2", "--expert-tensor-parallel-size", "1"]


@pytest.mark.parametrize(
    ("family", "modules", "flags"),
    [
        ("qwen3-moe", EXPERTS, PARALLEL),
        ("qwen3-moe", EXPERTS, [*PARALLEL, "--moe-grouped-gemm"]),
        ("deepseek3", LATENT, PARALLEL),
    ],
)
def test_experts_and_latent_attention(family, modules, flags, scratch) -> None:
    """At TP2 PP2 EP2 ETP1: merged into Megatron, and through an adapter divided in the same way."""
    base = write_tiny_hf(scratch / "base", family)
    added = per_expert(base, scratch / "adapter", modules)
    given = ("--lora-load", str(scratch / "adapter"))
    layout = {"tp": 2, "pp": 2}
    pairs = to_mg(base, scratch / "pairs", *given, "--save-lora-to-mg", *flags, **layout)
    before = weights(base)
    for number, lora in enumerate((scratch / "adapter", pairs)):
        root = to_mg(base, scratch / f"mg{number}", "--lora-load", str(lora), *flags, **layout)
        after = weights(to_hf(root, scratch / f"hf{number}"))
        assert after.keys() == before.keys()
        for name, tensor in after.items():
            exact = before[name].double() + added.get(name.removesuffix(".weight"), 0.0)
            torch.testing.assert_close(tensor.double(), exact, rtol=2e-7, atol=3e-7, msg=name)
    peft = to_hf(pairs, scratch / "peft", "--save-lora-to-hf")
    torch.testing.assert_close(dict(adapters.deltas(peft)), added, rtol=0, atol=0)
