"""Megatron -> Megatron: the result is what a conversion straight to that layout gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.checkpoint import ranks
from tests.unit.checkpoint.tiny import assert_same, main, rank_files, to_hf, to_mg, weights

TP, PP = "--target-tensor-parallel-size", "--target-pipeline-parallel-size"
EP, ETP = "--target-expert-parallel-size", "--expert-tensor-parallel-size"
NOOP, LIST, GROUPED = "--noop-layers", "--num-layer-list", "--moe-grouped-gemm"
VPP, DIST = "--num-layers-per-virtual-pipeline-stage", ("--ckpt-format", "torch_dist")
CHECK = ("--verify", "accounting")

PAIRS = [
    ("qwen3", (), (TP, "2", PP, "2")),
    ("qwen3", (TP, "8"), (PP, "4")),
    ("qwen3", (TP, "2", PP, "2", LIST, "1,3"), (TP, "4", PP, "2", VPP, "1")),
    ("gemma2", (PP, "2", VPP, "1"), (TP, "2", PP, "2", NOOP, "4,5")),
    ("qwen2", (PP, "2", NOOP, "0,5"), (TP, "2")),
    ("llama", (TP, "2"), (TP, "4", *DIST)),
    ("llama", (TP, "2", *DIST), (PP, "2")),
    ("qwen3-moe", (EP, "2"), (TP, "2", PP, "2", EP, "4", ETP, "1")),
    ("qwen3-moe-dense", (TP, "2", EP, "2", GROUPED), (EP, "4", PP, "2")),
    ("mixtral", (TP, "2", EP, "2", ETP, "1"), (TP, "4", GROUPED)),
    ("deepseek2", (TP, "2", EP, "2", *DIST), (TP, "2", PP, "2", EP, "2", ETP, "1", GROUPED)),
    ("qwen2-moe", (TP, "2", PP, "2", EP, "2"), DIST),
]
QUICK = (2, 8)


def to_other(source: Path, target: Path, *flags: str) -> Path:
    kinds = ["--load-model-type", "mg", "--save-model-type", "mg"]
    main([*kinds, "--load-dir", str(source), "--save-dir", str(target), *flags, *CHECK])
    return target


def assert_same_checkpoints(one: Path, other: Path) -> None:
    files = rank_files(one), rank_files(other)
    assert files[0].keys() == files[1].keys()
    for name, content in files[0].items():
        assert content["args"] == files[1][name]["args"]
        models = [key for key in content if key.startswith("model")]
        for key in models:
            assert_same(content[key], files[1][name][key])


@pytest.mark.parametrize(
    "number",
    [pytest.param(i, marks=() if i in QUICK else pytest.mark.soak) for i in range(len(PAIRS))],
)
def test_as_if_converted_straight(number, family_hf, scratch) -> None:
    family, first, second = PAIRS[number]
    source = family_hf(family)
    start = to_mg(source, scratch / "start", *first, *CHECK)
    moved = to_other(start, scratch / "moved", *second)
    if "torch_dist" not in second:
        assert_same_checkpoints(moved, to_mg(source, scratch / "straight", *second, *CHECK))
    back = to_hf(moved, scratch / "hf", *CHECK)
    assert_same(weights(source), weights(back))
    for name in ("config.json", "generation_config.json"):
        assert (back / name).read_bytes() == (source / name).read_bytes()


def test_types_change_on_the_way(family_hf, scratch) -> None:
    start = to_mg(family_hf("qwen3"), scratch / "start", *CHECK, tp=2)
    moved = to_other(start, scratch / "moved", PP, "2", "--params-dtype", "bf16")
    back = weights(to_hf(moved, scratch / "hf", *CHECK))
    assert_same({n: t.bfloat16() for n, t in weights(family_hf("qwen3")).items()}, back)


@pytest.mark.parametrize(
    "family, tp, pp",
    [
        ("qwen2", 2, 1),
        pytest.param("gemma2", 1, 2, marks=pytest.mark.soak),
        pytest.param("glm4_9b", 2, 1, marks=pytest.mark.soak),
        ("qwen3-moe-dense", 1, 2),
        pytest.param("qwen2-moe", 1, 1, marks=pytest.mark.soak),
        pytest.param("deepseek3", 1, 2, marks=pytest.mark.soak),
    ],
)
def test_megatron_loads_torch_dist_strictly(family, tp, pp, family_hf, scratch, pool) -> None:
    """megatron.core.dist_checkpointing finds all it wants in the file, and wants all of it."""
    source = family_hf(family)
    root = to_mg(source, scratch / "mg", *DIST, *CHECK)
    wanted = rank_files(to_mg(source, scratch / "torch", *CHECK, tp=tp, pp=pp))
    loaded = pool(tp * pp).run(ranks.load_dist_strictly, path=str(root), tp=tp, pp=pp)
    for arrays, content in zip(loaded, wanted.values(), strict=True):
        live = {name: torch.from_numpy(array) for name, array in arrays.items()}
        assert_same(live, content["model"])
