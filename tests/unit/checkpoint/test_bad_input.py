"""Wrong requests and broken folders: one message that says what to do, and nothing written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.tiny import edit_config, store, to_hf, to_mg, weights

ROOT = Path(__file__).resolve().parents[3]
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def assert_nothing_written(folder: Path) -> None:
    assert not folder.exists() or not list(folder.rglob("*")), list(folder.rglob("*"))
    assert not list(folder.parent.glob(f".{folder.name}*"))


# Requests: flags after --load-dir and --save-dir, and what the message must hold.
REQUESTS = {
    "family against config": (["--model-type-hf", "qwen3"], "Qwen3ForCausalLM.*LlamaForCausalLM"),
    "unknown family": (["--model-type-hf", "lama"], "did you mean llama"),
    "family to come": (["--model-type-hf", "glm5"], "missing: sparse attention"),
    "bias flag": (["--add-qkv-bias"], "--add-qkv-bias: llama .* has no such biases"),
    "width over TP": (["--target-tensor-parallel-size", "5"], "96 does not divide.*1, 2, 3, 4, 6"),
    "layers over PP": (["--target-pipeline-parallel-size", "3"], "--num-layer-list 1,1,2"),
    "list of wrong sum": (
        ["--target-pipeline-parallel-size", "2", "--num-layer-list", "3,2"],
        "adds up to 5, the model has 4",
    ),
    "chunks that do not divide": (
        ["--target-pipeline-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "3"],
        "do not divide into virtual stages of 3",
    ),
    "padding too small": (["--padded-vocab-size", "130"], "at least the vocabulary's 131"),
    "padding over TP": (
        ["--padded-vocab-size", "133", "--target-tensor-parallel-size", "2"],
        "multiple of the tensor-parallel size 2",
    ),
    "more layers than there are": (["--num-layers", "5"], "the model has 4 layers"),
    "config folder with hf": (["--hf-cfg-dir", "/tmp"], "config.json is taken from --load-dir"),
    "hf to hf": (["--save-model-type", "hf"], "nothing to convert"),
    "hf folder as mg": (
        ["--load-model-type", "mg", "--save-model-type", "hf"],
        "give --load-model-type hf",
    ),
    "experts": (["--target-expert-parallel-size", "2"], "has no experts"),
    "unknown flag": (["--target-tensor-paralel-size", "2"], "--target-tensor-parallel-size"),
    "unknown type": (["--params-dtype", "int8"], "fp32, fp16, bf16"),
    "type that is no type": (["--load-model-type", "gguf"], "hf, mg"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_wrong_requests(name, tiny_hf, scratch) -> None:
    flags, message = REQUESTS[name]
    target = scratch / "out"
    with pytest.raises(UserError, match=f"(?s){message}"):
        tiny.main(["--load-dir", str(tiny_hf("llama")), "--save-dir", str(target), *flags])
    assert_nothing_written(target)


def _remove(folder: Path, name: str) -> None:
    (folder / name).unlink()


def _drop_tensor(folder: Path) -> None:
    store(folder, {n: t for n, t in weights(folder).items() if n != Q_PROJ})


def _add_tensor(folder: Path) -> None:
    store(folder, {**weights(folder), "model.layers.9.surprise.weight": torch.zeros(3)})


def _wrong_shape(folder: Path) -> None:
    store(folder, {**weights(folder), Q_PROJ: torch.zeros(63, 64)})


def _int8(folder: Path) -> None:
    store(folder, {**weights(folder), Q_PROJ: torch.zeros(64, 64, dtype=torch.int8)})


def _truncate(folder: Path, name: str = "model.safetensors") -> None:
    path = folder / name
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 1000)


def _index(folder: Path, table: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))


def _index_of_lost_tensor(folder: Path) -> None:
    _index(folder, dict.fromkeys([*weights(folder), "model.ghost.weight"], "model.safetensors"))


def _index_of_lost_shard(folder: Path) -> None:
    _index(folder, {Q_PROJ: "model-00002-of-00002.safetensors", "x": "model.safetensors"})


def _index_outside(folder: Path) -> None:
    _index(folder, {Q_PROJ: "../../etc/passwd"})


def _twice(folder: Path) -> None:
    tiny.save_file({Q_PROJ: weights(folder)[Q_PROJ]}, folder / "model-2.safetensors")
    _index(folder, {Q_PROJ: "model-2.safetensors", "model.norm.weight": "model.safetensors"})


def _config(**changes: object) -> Callable[[Path], object]:
    return lambda folder: edit_config(folder, **changes)


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: _remove(f, "config.json"), "holds neither a Hugging Face model"),
    "config no JSON": (_text("config.json", "{"), "config.json is not valid JSON"),
    "config a list": (_text("config.json", "[]"), "not a JSON object"),
    "no weights": (lambda f: _remove(f, "model.safetensors"), "no weights at all"),
    "missing tensor": (_drop_tensor, f"missing: {Q_PROJ}"),
    "left-over tensor": (_add_tensor, "not part of this model: model.layers.9.surprise.weight"),
    "wrong shape": (_wrong_shape, rf"{Q_PROJ} has size \[63, 64\], expected \[64, 64\]"),
    "integer weights": (_int8, f"{Q_PROJ} is stored as I8, which looks quantised"),
    "quantised": (_config(quantization_config={"bits": 4}), "dequantise the weights first"),
    "truncated": (_truncate, "is truncated or damaged"),
    "empty file": (_text("model.safetensors", ""), "is truncated or damaged"),
    "index of a lost tensor": (_index_of_lost_tensor, "model.ghost.weight"),
    "index of a lost shard": (_index_of_lost_shard, "model-00002-of-00002.safetensors; download"),
    "index outside": (_index_outside, "outside its folder"),
    "index no JSON": (_text("model.safetensors.index.json", "no"), "not a weight index"),
    "index without map": (_text("model.safetensors.index.json", "{}"), "not a weight index"),
    "tensor in two files": (_twice, f"{Q_PROJ} is in two files"),
    "tied but different": (_config(tie_word_embeddings=True), "set tie_word_embeddings to false"),
    "other architecture": (_config(architectures=["GPT2LMHeadModel"]), "no family for GPT2"),
    "other layer count": (_config(num_hidden_layers=3), "not part of this model: .*layers.3"),
    "other vocabulary": (_config(vocab_size=132), r"\[131, 64\], expected \[132, 64\]"),
    "stray safetensors": (
        lambda f: (f / "model.safetensors").rename(f / "part.safetensors"),
        "part.safetensors but no model.safetensors.index.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_hugging_face_folders(name, own_hf, scratch) -> None:
    spoil, message = BROKEN[name]
    folder, target = own_hf("llama"), scratch / "out"
    spoil(folder)
    with pytest.raises(UserError, match=message):
        to_mg(folder, target, tp=2)
    assert_nothing_written(target)


POINTER = "latest_checkpointed_iteration.txt"
FILE = "iter_0000001/mp_rank_01_000/model_optim_rng.pt"


def _rewrite(root: Path, change: Callable[[dict], object]) -> None:
    content = torch.load(root / FILE, weights_only=False)
    change(content)
    torch.save(content, root / FILE)


def _set_all_args(root: Path, **values: object) -> None:
    for path in root.glob("iter_0000001/*/model_optim_rng.pt"):
        content = torch.load(path, weights_only=False)
        vars(content["args"]).update(values)
        torch.save(content, path)


NORM = "decoder.layers.0.input_layernorm.weight"
FC2 = "decoder.layers.0.mlp.linear_fc2.weight"
BROKEN_MEGATRON: dict[str, tuple[Callable[[Path], object], str]] = {
    "no rank file": (lambda r: _remove(r, FILE), "mp_rank_01_000/model_optim_rng.pt missing"),
    "truncated rank file": (lambda r: _truncate(r, FILE), "truncated or damaged"),
    "text as rank file": (_text(FILE, "hello"), "damaged"),
    "pointer empty": (_text(POINTER, ""), "not an iteration number"),
    "pointer nonsense": (_text(POINTER, "last"), "'last', not an iter"),
    "pointer to nothing": (_text(POINTER, "7"), "iteration 7 .* iterations there: 1"),
    "no pointer": (lambda r: _remove(r, POINTER), "present: 1"),
    "tensor gone": (lambda r: _rewrite(r, lambda c: c["model"].pop(FC2)), f"missing: {FC2}"),
    "tensor too many": (
        lambda r: _rewrite(r, lambda c: c["model"].update({"decoder.x": torch.zeros(1)})),
        "not part of this model: decoder.x",
    ),
    "wrong size": (
        lambda r: _rewrite(r, lambda c: c["model"].update({FC2: torch.zeros(64, 47)})),
        r"linear_fc2.weight has size \[64, 47\], expected \[64, 48\]",
    ),
    "copies differ": (
        lambda r: _rewrite(r, lambda c: c["model"][NORM].add_(1)),
        "copies of tensor-parallel ranks 0 and 1 differ",
    ),
    "args of another layout": (
        lambda r: _set_all_args(r, tensor_model_parallel_size=4),
        "args say TP4 PP2, its folders are mp_rank_00_000, mp_rank_00_001, mp_rank_01_000,",
    ),
    "experts": (lambda r: _set_all_args(r, num_experts=8), "num_experts 8"),
    "args without size": (lambda r: _set_all_args(r, hidden_size=None), "hidden_size None"),
    "no model": (lambda r: _rewrite(r, lambda c: c.pop("model")), "has no 'model'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_MEGATRON)
def test_broken_megatron_folders(name, tiny_hf, scratch) -> None:
    spoil, message = BROKEN_MEGATRON[name]
    root = to_mg(tiny_hf("llama"), scratch / "mg", tp=2, pp=2)
    spoil(root)
    with pytest.raises(UserError, match=f"(?s){message}"):
        to_hf(root, scratch / "out")
    assert_nothing_written(scratch / "out")


def test_tied_copies_that_differ_are_never_exported(tiny_hf, scratch) -> None:
    """CONV-01: two differing copies are an error."""
    root = to_mg(tiny_hf("llama", tied=True), scratch / "mg", pp=2)
    path = root / "iter_0000001/mp_rank_00_001/model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    content["model"]["output_layer.weight"][3] += 1
    torch.save(content, path)
    with pytest.raises(UserError, match="first and the last pipeline stage hold different"):
        to_hf(root, scratch / "out")


def test_layout_flags_for_export_are_refused(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg", tp=2)
    with pytest.raises(UserError, match="--target-tensor-parallel-size: for hf to mg only"):
        to_hf(root, scratch / "out", "--target-tensor-parallel-size", "2")


def test_config_folder_of_another_model_lists_the_differences(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg")
    with pytest.raises(
        UserError, match=r"(?s)family: config.json qwen3.*kv_channels: config.json 24"
    ):
        to_hf(root, scratch / "out", "--hf-cfg-dir", str(tiny_hf("qwen3")))


class TestFolders:
    """Sources are never written into, and results never overwritten."""

    def test_save_into_the_source(self, own_hf) -> None:
        folder = own_hf()
        for target in (folder, folder / "mg", folder / "a" / ".." / "mg"):
            with pytest.raises(UserError, match=r"is, or lies in, --load-dir"):
                to_mg(folder, target)

    def test_missing_source(self, scratch) -> None:
        with pytest.raises(UserError, match="does not exist"):
            to_mg(scratch / "nowhere", scratch / "out")

    def test_no_folders_given(self) -> None:
        with pytest.raises(UserError, match="--load-dir is required"):
            tiny.main([])

    def test_target_is_a_file(self, tiny_hf, scratch) -> None:
        (scratch / "out").write_text("")
        with pytest.raises(UserError, match="exists and is not a folder"):
            to_mg(tiny_hf("llama"), scratch / "out")

    def test_existing_checkpoint(self, tiny_hf, scratch) -> None:
        root = to_mg(tiny_hf("llama"), scratch / "mg")
        with pytest.raises(UserError, match=r"already holds a checkpoint .iterations: 1"):
            to_mg(tiny_hf("llama"), root)

    def test_existing_weights(self, tiny_hf, own_hf, scratch) -> None:
        root = to_mg(tiny_hf("llama"), scratch / "mg")
        with pytest.raises(UserError, match=r"already holds weights .model.safetensors"):
            to_hf(root, own_hf())

    def test_full_disk(self, tiny_hf, scratch, monkeypatch) -> None:
        import shutil
        from types import SimpleNamespace

        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000_000))
        with pytest.raises(UserError, match=r"the disk has 0\.01 GB free"):
            to_mg(tiny_hf("llama"), scratch / "out")
        assert_nothing_written(scratch / "out")

    def test_disk_that_fills_up_while_writing(self, tiny_hf, scratch, monkeypatch) -> None:
        import errno
        import os

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(UserError, match="No space left on device; nothing was left behind"):
            to_mg(tiny_hf("llama"), scratch / "out", tp=2)
        assert_nothing_written(scratch / "out")


def test_the_command_ends_with_one_message_and_a_status(own_hf, scratch) -> None:
    folder = own_hf()
    _truncate(folder)
    command = [sys.executable, "convert_ckpt_v2.py", "--load-dir", str(folder)]
    ended = subprocess.run(
        [*command, "--save-dir", str(scratch / "out")], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "truncated or damaged" in ended.stderr
    assert len(ended.stderr.splitlines()) <= 24
