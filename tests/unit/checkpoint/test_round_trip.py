"""Hugging Face -> Megatron -> Hugging Face is bit-equal for every layout, and loads again."""

from __future__ import annotations

import pytest
import torch

from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

FAMILIES = ("llama", "qwen2", "qwen3")
VPP = ("--num-layers-per-virtual-pipeline-stage", "1")
LAYOUTS = {
    "TP1": (1, 1, ()),
    "TP2": (2, 1, ()),
    "TP4": (4, 1, ()),
    "PP2": (1, 2, ()),
    "PP4": (1, 4, ()),
    "TP2 PP2": (2, 2, ()),
    "TP4 PP4": (4, 4, ()),
    "TP2 PP2 VPP2": (2, 2, VPP),
    "PP3 uneven": (1, 3, ("--num-layer-list", "2,1,1")),
    "TP2 PP2 uneven": (2, 2, ("--num-layer-list", "1,3")),
    "TP3, padded heads": (3, 1, ()),
    "TP8, shared heads": (8, 1, ()),
    "TP2, padded vocabulary": (2, 1, ("--padded-vocab-size", "256")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_comes_back(family, tied, layout, tiny_hf, scratch) -> None:
    """CONV-01, CONV-05: all tensors, biases and norms included, at every layout."""
    source = tiny_hf(family, tied)
    tp, pp, flags = LAYOUTS[layout]
    back = to_hf(to_mg(source, scratch / "mg", *flags, tp=tp, pp=pp), scratch / "hf")
    assert_same(weights(source), weights(back))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_logits_from_the_result(family, tiny_hf, scratch) -> None:
    from transformers import AutoModelForCausalLM

    source = tiny_hf(family, tied=True)
    back = to_hf(to_mg(source, scratch / "mg", tp=2, pp=2), scratch / "hf")
    ids = torch.arange(1, 34).unsqueeze(0)
    with torch.no_grad():
        before, after = (
            AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (source, back)
        )
    assert torch.equal(before, after)


def test_layout_on_disk(tiny_hf, scratch) -> None:
    """Folder, file and key names are those that Megatron trainers look for."""
    root = to_mg(tiny_hf("qwen2", tied=True), scratch / "mg", tp=2, pp=2)
    assert (root / "latest_checkpointed_iteration.txt").read_text() == "1"
    files = rank_files(root)
    assert list(files) == [f"mp_rank_{tp:02d}_{pp:03d}" for tp in range(2) for pp in range(2)]
    layer = [
        "input_layernorm.weight",
        "self_attention.linear_qkv.weight",
        "self_attention.linear_qkv.bias",
        "self_attention.linear_proj.weight",
        "pre_mlp_layernorm.weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
    ]
    layers = [f"decoder.layers.{i}.{name}" for i in range(2) for name in layer]
    first, last = files["mp_rank_00_000"], files["mp_rank_01_001"]
    assert list(first) == ["args", "checkpoint_version", "iteration", "model"]
    assert (first["checkpoint_version"], first["iteration"]) == (3.0, 1)
    assert set(first["model"]) == {"embedding.word_embeddings.weight", *layers}
    ends = ("decoder.final_layernorm.weight", "output_layer.weight")
    assert set(last["model"]) == {*layers, *ends}
    args = first["args"]
    assert (args.num_layers, args.tensor_model_parallel_size) == (4, 2)
    assert (args.padded_vocab_size, args.vocab_size, args.params_dtype) == (132, 131, "fp32")
    single = to_mg(tiny_hf("llama"), scratch / "single", tp=1, pp=1)
    assert list(rank_files(single)) == ["mp_rank_00"]
    chunks = rank_files(to_mg(tiny_hf("llama"), scratch / "vpp", *VPP, pp=2))
    assert [k for k in chunks["mp_rank_00_001"] if "model" in k] == ["model0", "model1"]


def test_torch_reads_the_files_safely_and_mapped(tiny_hf, scratch) -> None:
    import argparse

    root = to_mg(tiny_hf("llama"), scratch / "mg")
    path = root / "iter_0000001/mp_rank_00/model_optim_rng.pt"
    with torch.serialization.safe_globals([argparse.Namespace]):
        read = torch.load(path, weights_only=True)["model"]
        mapped = torch.load(path, weights_only=True, mmap=True)["model"]
    stored = weights(tiny_hf("llama"))
    assert_same(read, mapped)
    name = "decoder.layers.3.mlp.linear_fc2.weight"
    assert torch.equal(mapped[name], stored["model.layers.3.mlp.down_proj.weight"])
    assert mapped[name].is_contiguous()


def test_sharded_output_has_an_index_that_equals_the_files(tiny_hf, scratch, monkeypatch) -> None:
    import json

    from safetensors import safe_open

    from mindspeed_llm.checkpoint import convert

    writer = convert.HfWriter
    monkeypatch.setattr(convert, "HfWriter", lambda *a: writer(*a, shard_bytes=100_000))
    source = tiny_hf("llama")
    back = to_hf(to_mg(source, scratch / "mg"), scratch / "hf")
    files = sorted(back.glob("*.safetensors"))
    assert [f.name for f in files] == [
        f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)
    ]
    assert len(files) > 3
    held = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            held.update(dict.fromkeys(opened.keys(), file.name))
    index = json.loads((back / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in weights(back).values())
    assert_same(weights(source), weights(back))
    again = to_hf(to_mg(back, scratch / "mg2", tp=2), scratch / "hf2")
    assert_same(weights(source), weights(again))


def test_first_layers_only(tiny_hf, scratch) -> None:
    from transformers import AutoModelForCausalLM

    source = tiny_hf("qwen3")
    root = to_mg(source, scratch / "mg", "--num-layers", "2", pp=2)
    back = to_hf(root, scratch / "hf")
    kept = {n: t for n, t in weights(source).items() if "layers.2" not in n and "layers.3" not in n}
    assert_same(kept, weights(back))
    model = AutoModelForCausalLM.from_pretrained(back)
    assert model.config.num_hidden_layers == len(model.model.layers) == 2


def test_bin_files_are_read_too(tiny_hf, own_hf, scratch) -> None:
    folder = own_hf("qwen2")
    torch.save(weights(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    back = to_hf(to_mg(folder, scratch / "mg", tp=2), scratch / "hf")
    assert_same(weights(tiny_hf("qwen2")), weights(back))


def test_a_checkpoint_without_side_files_gets_a_fresh_config(tiny_hf, scratch) -> None:
    import shutil

    from transformers import AutoModelForCausalLM

    source = tiny_hf("llama", tied=True)
    root = to_mg(source, scratch / "mg", tp=2)
    shutil.rmtree(root / "hf_files")
    back = to_hf(root, scratch / "hf")
    ids = torch.arange(1, 34).unsqueeze(0)
    with torch.no_grad():
        before, after = (
            AutoModelForCausalLM.from_pretrained(folder)(ids).logits for folder in (source, back)
        )
    assert torch.equal(before, after)
    given = to_hf(root, scratch / "given", "--hf-cfg-dir", str(source))
    assert (given / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (given / "tokenizer_config.json").exists()


def test_export_into_a_folder_with_other_files_keeps_them(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg")
    target = scratch / "hf"
    target.mkdir()
    (target / "notes.md").write_text("mine")
    to_hf(root, target)
    assert (target / "notes.md").read_text() == "mine"
    assert_same(weights(tiny_hf("llama")), weights(target))
    assert not (target / "converted").exists()
