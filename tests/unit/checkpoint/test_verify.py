"""``--verify``: what each level notices, and what becomes of a result that is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import placement, verify
from mindspeed_llm.checkpoint.planned_file import PlannedFile
from mindspeed_llm.models.mapping import WeightMap
from tests.families import CONFIGS, write_tiny_hf
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.exchanges import exchanger
from tests.unit.checkpoint.tiny import to_hf, to_mg, weights

ROUNDTRIP = ("--verify", "roundtrip")
LOGITS = ("--verify", "logits")
NORMS = ("decoder.layers.*.input_layernorm.weight", "decoder.layers.*.pre_mlp_layernorm.weight")


def undetected(folder, limit: int | None) -> list[str]:
    """Exchanges of two weights that the logits check would let pass."""
    with exchanger(folder) as model:
        assert model.compare().equal
        pairs = model.pairs(limit)
        passed = [pair for pair in pairs if model.compare_exchanged(pair).equal]
        experts = model.source.shape.experts
    assert pairs
    if passed and experts is not None:
        # The check compares a second time, with every token through every expert.
        with exchanger(folder, even=True) as model:
            assert model.compare().equal
            passed = [pair for pair in passed if model.compare_exchanged(pair).equal]
    return [f"{one.megatron} <-> {other.megatron}" for one, other in passed]


@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_an_exchange_of_two_weights_shows_in_the_logits(family, tmp_path) -> None:
    assert not undetected(write_tiny_hf(tmp_path / "hf", family), limit=10)


@pytest.mark.soak
@pytest.mark.parametrize("family", CONFIGS)
def test_an_exchange_shows_in_every_family(family, tmp_path) -> None:
    assert not undetected(write_tiny_hf(tmp_path / "hf", family), limit=60)


@pytest.mark.soak
@pytest.mark.parametrize("family", CONFIGS)
def test_every_exchange_shows_in_every_family(family, tmp_path) -> None:
    assert not undetected(write_tiny_hf(tmp_path / "hf", family), limit=None)


def exchange_norms(monkeypatch, family) -> None:
    """Give the family of a map in which two entries have each other's Megatron name."""
    plain = family.weights

    def weights(shape):
        other = dict(zip(NORMS, reversed(NORMS), strict=True))
        return WeightMap(
            tuple(
                replace(e, megatron=other.get(e.megatron, e.megatron)) for e in plain(shape).entries
            )
        )

    monkeypatch.setitem(vars(family), "weights", weights)
    # Not the entries of this model that an earlier conversion left there.
    monkeypatch.setattr(placement, "_entries", placement._entries.__wrapped__)


def test_a_wrong_map_fails_only_the_logits_and_leaves_nothing(
    tiny_hf, scratch, monkeypatch
) -> None:
    """A map that is wrong in the same way in both directions comes back bit-equal all the same."""
    from mindspeed_llm.models.llama import LLAMA

    source = tiny_hf("llama")
    with monkeypatch.context() as patch:
        exchange_norms(patch, LLAMA)
        root = to_mg(source, scratch / "unnoticed", *ROUNDTRIP)
        with pytest.raises(UserError, match=r"check \(logits\).*was removed.*max.Δ.*bound is"):
            to_mg(source, scratch / "out", *LOGITS)
    assert root.exists()
    assert not list(scratch.glob("*out")) + list(scratch.glob(".*"))


@pytest.mark.soak
@pytest.mark.parametrize("family", ["qwen2", "deepseek3", "gemma2"])
def test_logits_are_compared_by_default_in_both_directions(family, tmp_path) -> None:
    source = write_tiny_hf(tmp_path / "hf", family)
    kinds = ["--load-model-type", "mg", "--save-model-type", "hf"]
    root, back = tmp_path / "mg", tmp_path / "back"
    tiny.main(["--load-dir", str(source), "--save-dir", str(root), "--params-dtype", "bf16"])
    tiny.main([*kinds, "--load-dir", str(root), "--save-dir", str(back)])
    for folder in (root, back):
        checks = json.loads((folder / "conversion.json").read_text())["checks"]
        assert [check["name"] for check in checks] == ["accounting", "roundtrip", "logits"]
        numbers = checks[-1]["numbers"]
        assert numbers["routed"]["relative"] < 1e-5
        assert numbers["routed"]["agreement"] == 1
        assert ("every_expert" in numbers) == (family == "deepseek3")


@pytest.mark.soak
def test_truncated_models_are_compared_with_as_many_layers(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("qwen3"), scratch / "mg", "--num-layers", "2", *LOGITS)
    checks = json.loads((root / "conversion.json").read_text())["checks"]
    assert checks[-1]["numbers"]["routed"]["relative"] < 1e-5


def flip_a_bit(monkeypatch, name: str) -> None:
    """Let one value of the tensor ``name`` reach the disk wrong."""
    plain = PlannedFile.write

    def write(self, slot, rows):
        if slot.endswith(name):
            rows = [rows[0].clone(), *rows[1:]]
            rows[0].view(torch.uint8).flatten()[5] ^= 1
        return plain(self, slot, rows)

    monkeypatch.setattr(PlannedFile, "write", write)


@pytest.mark.parametrize("direction", ["to mg", "to hf"])
def test_roundtrip_sees_one_wrong_bit(direction, tiny_hf, scratch, monkeypatch) -> None:
    source, convert, name = tiny_hf("llama"), to_mg, "decoder.layers.1.mlp.linear_fc1.weight"
    if direction == "to hf":
        source, convert = to_mg(source, scratch / "mg", tp=2), to_hf
        name = "model.layers.1.mlp.up_proj.weight"
    flip_a_bit(monkeypatch, name)
    with pytest.raises(UserError, match=r"check \(roundtrip\).*mlp\.\w+_proj\.weight"):
        convert(source, scratch / "out", *ROUNDTRIP)
    assert not list(scratch.glob("*out")) + list(scratch.glob(".*"))
    convert(source, scratch / "out")  # accounting looks at no value


@pytest.mark.parametrize("flags", [(), ("--params-dtype", "bf16"), ("--padded-vocab-size", "256")])
@pytest.mark.parametrize("sizes", [{"tp": 1}, {"tp": 2, "pp": 2}, {"tp": 3}])
def test_roundtrip_passes_what_is_right(sizes, flags, tiny_hf, scratch) -> None:
    if sizes["tp"] == 3 and "--padded-vocab-size" in flags:
        flags = ("--padded-vocab-size", "255")
    root = to_mg(tiny_hf("qwen2", tied=True), scratch / "mg", *ROUNDTRIP, *flags, **sizes)
    back = to_hf(root, scratch / "hf", *ROUNDTRIP)
    report = json.loads((back / "conversion.json").read_text())
    stored = sum(t.nbytes for t in weights(back).values())
    assert report["checks"][1]["numbers"]["bytes"] == stored


def test_accounting_sees_a_file_that_was_lost(tiny_hf, scratch, monkeypatch) -> None:
    plain = PlannedFile.finish

    def finish(self):
        done = plain(self)
        content = torch.load(self.path, weights_only=False)
        content["model"].pop("decoder.layers.0.input_layernorm.weight", None)
        torch.save(content, self.path)
        return done

    monkeypatch.setattr(PlannedFile, "finish", finish)
    with pytest.raises(UserError, match=r"(?s)check \(accounting\).*input_layernorm"):
        to_mg(tiny_hf("llama"), scratch / "out")
    assert not list(scratch.glob("*out")) + list(scratch.glob(".*"))


def test_a_model_too_large_is_not_compared_unless_asked(tiny_hf, scratch, monkeypatch) -> None:
    monkeypatch.setattr(verify, "SMALL", 1000)
    target = scratch / "mg"
    tiny.main(["--load-dir", str(tiny_hf("llama")), "--save-dir", str(target)])
    checks = json.loads((target / "conversion.json").read_text())["checks"]
    assert [(check["name"], check["done"]) for check in checks] == [
        ("accounting", True),
        ("logits", False),
    ]
    assert "--verify logits" in checks[1]["text"]


def test_rows_divided_differently_are_the_same_tensor() -> None:
    tensor = torch.arange(24.0).reshape(8, 3)
    one, other = [tensor[:2], tensor[2:7], tensor[7:]], [tensor[:5], tensor[5:6], tensor[6:]]
    assert verify.equal_rows(one, other)
    assert not verify.equal_rows(one, other[:-1])
    changed = tensor.clone()
    changed[6, 1] += 1
    assert not verify.equal_rows(one, [changed[:5], changed[5:]])
    assert not verify.equal_rows(one, [tensor.double()])
