"""Types of weights in conversion: CONV-10."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

UP = "model.layers.2.mlp.up_proj.weight"
DIRECTIONS = ("to mg", "to hf")


def size_of(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.glob("*.safetensors"))


def cast(source: Path, folder: Path, dtype: str, direction: str) -> Path:
    """Convert there and back, with the cast in one of the two directions."""
    flags = ("--params-dtype", dtype)
    there, back = (flags, ()) if direction == "to mg" else ((), flags)
    return to_hf(to_mg(source, folder / "mg", *there), folder / "back", *back)


def test_conv_10_bf16_stays_bf16(tmp_path) -> None:
    """CONV-10: types, bytes on disk and the config's type field stay as they are."""
    source = tiny.make(tmp_path / "hf", "qwen2", torch.bfloat16)
    root = to_mg(source, tmp_path / "mg", tp=2)
    for content in rank_files(root).values():
        assert {t.dtype for t in content["model"].values()} == {torch.bfloat16}
        assert content["args"].params_dtype == "bf16"
    back = to_hf(root, tmp_path / "back")
    assert_same(weights(source), weights(back))
    assert abs(size_of(back) - size_of(source)) < 1000
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_conv_10_one_tensor_in_fp32_stays_so(tmp_path) -> None:
    """CONV-10: a mixed source keeps each tensor's type."""
    source = tiny.make(tmp_path / "hf", "llama", torch.bfloat16)
    stored = {**weights(source), "model.norm.weight": torch.randn(64)}
    tiny.store(source, stored)
    assert_same(stored, weights(to_hf(to_mg(source, tmp_path / "mg", tp=2), tmp_path / "back")))


def test_conv_10_tensors_to_be_fused_must_agree(tmp_path) -> None:
    """CONV-10: no silent promotion; a requested type settles it."""
    source = tiny.make(tmp_path / "hf", "llama", torch.bfloat16)
    name = "model.layers.0.self_attn.k_proj.weight"
    tiny.store(source, {**weights(source), name: weights(source)[name].float()})
    with pytest.raises(UserError, match=r"k_proj.*different types \(bf16 and fp32\)"):
        to_mg(source, tmp_path / "mg")
    result = cast(source, tmp_path, "bf16", "to mg")
    assert {t.dtype for t in weights(result).values()} == {torch.bfloat16}


@pytest.mark.parametrize("name, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_conv_10_a_cast_is_one_step_and_said(name, dtype, direction, tmp_path, capsys) -> None:
    """CONV-10: one rounding from the stored value; the config states the new type."""
    source = tiny.make(tmp_path / "hf", "qwen2")
    result = cast(source, tmp_path, name, direction)
    assert f"cast fp32 -> {name}" in capsys.readouterr().out
    assert_same({n: t.to(dtype) for n, t in weights(source).items()}, weights(result))
    config = json.loads((result / "config.json").read_text())
    stated = {config[key] for key in ("dtype", "torch_dtype") if key in config}
    assert stated == {str(dtype).removeprefix("torch.")}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_conv_10_overflow_is_detected(direction, tmp_path) -> None:
    """CONV-10: 1e5 does not fit into fp16; the tensor is named and nothing is left behind."""
    source = tiny.make(tmp_path / "hf", "llama", torch.bfloat16)
    stored = weights(source)
    stored[UP][5, 7] = 1e5
    tiny.store(source, stored)
    with pytest.raises(UserError, match=r"linear_fc1\.weight: 1 values do not fit.*99840"):
        cast(source, tmp_path, "fp16", direction)
    failed = tmp_path / ("mg" if direction == "to mg" else "back")
    assert not list(failed.glob("*"))
    assert not list(tmp_path.glob(".*"))


def test_conv_10_values_that_are_no_numbers_are_said(tmp_path, capsys) -> None:
    """CONV-10: NaN in the source is carried over, and said."""
    source = tiny.make(tmp_path / "hf", "llama", torch.bfloat16)
    stored = weights(source)
    stored[UP][5, :3] = float("nan")
    tiny.store(source, stored)
    to_mg(source, tmp_path / "mg", tp=2)
    said = capsys.readouterr().err
    assert "tensors hold NaN or infinite values (decoder.layers.2.mlp.linear_fc1" in said
