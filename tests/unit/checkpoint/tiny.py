"""Tiny Hugging Face models by ``transformers`` itself, and short ways to convert and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mindspeed_llm.checkpoint.command import main

SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# What sets each family apart; head_dim of qwen3 is not hidden / heads.
FAMILY: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3_SCALING},
    "qwen2": {},
    "qwen3": {"head_dim": 24},
}


# Comparing logits takes seconds each time; the tests of the checks ask for it.
QUICK = ("--verify", "accounting")


def make(folder: Path, family: str, dtype: torch.dtype = torch.float32, **config: Any) -> Path:
    """A model with random weights everywhere (norms and biases too), saved by transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    built = AutoConfig.for_model(family, **{**SIZES, **FAMILY[family], **config})
    built.architectures = None
    model = AutoModelForCausalLM.from_config(built).to(dtype)
    generator = torch.Generator().manual_seed(len(family))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 128}\n')
    return folder


def weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face folder, read by the safetensors library."""
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def store(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Replace a folder's weights."""
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of ``config.json``."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def to_mg(source: Path, target: Path, *flags: str, tp: int = 1, pp: int = 1) -> Path:
    """Convert with the command's own argument list."""
    sizes = ["--target-tensor-parallel-size", str(tp), "--target-pipeline-parallel-size", str(pp)]
    main(["--load-dir", str(source), "--save-dir", str(target), *sizes, *QUICK, *flags])
    return target


def to_hf(source: Path, target: Path, *flags: str) -> Path:
    """The way back."""
    kinds = ["--load-model-type", "mg", "--save-model-type", "hf"]
    main([*kinds, "--load-dir", str(source), "--save-dir", str(target), *QUICK, *flags])
    return target


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Same names, types, sizes and bits."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), name


def rank_files(root: Path) -> dict[str, dict]:
    """Rank folder name -> content, read by plain ``torch.load``."""
    return {
        path.parent.name: torch.load(path, weights_only=False)
        for path in sorted((root / "iter_0000001").glob("*/model_optim_rng.pt"))
    }
