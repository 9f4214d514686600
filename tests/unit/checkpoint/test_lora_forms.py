"""Forms of adapters: trained in Megatron, beside the weights, ``.bin``, experts, ``torch_dist``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.families import write_tiny_hf
from tests.unit.checkpoint import adapters
from tests.unit.checkpoint.tiny import to_hf, to_mg, weights

pytest.importorskip("peft")


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


def test_adapter_trained_in_megatron_is_exported_and_imported_again(tiny_lora, scratch) -> None:
    """Every projection gets the shared A and its rows of B; the way back is bit-equal."""
    base, _ = tiny_lora("qwen3")
    native = trained_in_megatron(base, scratch)
    peft = to_hf(native, scratch / "peft", "--save-lora-to-hf")
    config = json.loads((peft / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (4, 8, {})
    assert sorted(config["target_modules"]) == sorted(adapters.SEPARATE)
    kind = ("--load-model-type", "hf")
    merged = to_hf(base, scratch / "merged", *kind, "--lora-load", str(native))
    adapters.assert_close(weights(merged), adapters.merged_by_peft(base, peft))
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
def test_weights_and_adapter_in_the_same_files(prefix, tiny_lora, scratch) -> None:
    """Without --lora-load, the adapter beside the weights is merged."""
    base, adapter = tiny_lora("qwen3")
    sizes = {"tp": 2, "pp": 2}
    weights_only = to_mg(base, scratch / "base", **sizes)
    pairs = to_mg(
        base, scratch / "pairs", "--lora-load", str(adapter), "--save-lora-to-mg", **sizes
    )
    both = unified(weights_only, pairs, scratch / "both", prefix)
    expected = adapters.merged_by_peft(base, adapter)
    adapters.assert_close(weights(to_hf(both, scratch / "hf", "--lora-r", "6")), expected)
    # As an adapter of its own, for a base elsewhere, and to PEFT.
    given = ("--lora-load", str(both))
    adapters.assert_close(weights(to_hf(weights_only, scratch / "again", *given)), expected)
    peft = to_hf(both, scratch / "peft", "--save-lora-to-hf")
    before, after = adapters.deltas(adapter), adapters.deltas(peft)
    assert all(torch.equal(before[module], after[module]) for module in before)


def test_bin_files_of_older_peft(tiny_lora, scratch) -> None:
    from safetensors.torch import load_file

    base, adapter = tiny_lora("llama")
    own = Path(shutil.copytree(adapter, scratch / "own"))
    torch.save(load_file(own / "adapter_model.safetensors"), own / "adapter_model.bin")
    (own / "adapter_model.safetensors").unlink()
    root = to_mg(base, scratch / "mg", "--lora-load", str(own))
    adapters.assert_close(
        weights(to_hf(root, scratch / "hf")), adapters.merged_by_peft(base, adapter)
    )


@pytest.mark.parametrize("form", ["torch", "torch_dist"])
def test_from_one_megatron_layout_to_another(form, tiny_lora, scratch) -> None:
    """Base, adapter and result each have a layout of their own."""
    base, adapter = tiny_lora("llama")
    pairs = ("--lora-load", str(adapter), "--save-lora-to-mg")
    mg_adapter = to_mg(base, scratch / "adapter", *pairs, pp=4)
    mg_base = to_mg(base, scratch / "base", "--ckpt-format", form, tp=2)
    given = ("--load-model-type", "mg", "--lora-load", str(mg_adapter), "--ckpt-format", form)
    root = to_mg(mg_base, scratch / "merged", *given, tp=1, pp=2)
    expected = adapters.merged_by_peft(base, adapter)
    adapters.assert_close(weights(to_hf(root, scratch / "hf")), expected)


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
