"""Every slot is filled exactly once, with what belongs there."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from mindspeed_llm.checkpoint.planned_file import TensorSpec
from mindspeed_llm.checkpoint.safetensors_file import plan_safetensors_file, shard
from mindspeed_llm.checkpoint.torch_file import plan_torch_file
from mindspeed_llm.checkpoint.work import fill

TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "b": torch.randn(5),
    "c": torch.empty(0, 4, dtype=torch.float16),
    "d": torch.randn(7, 3).half(),
}
SPECS = {name: TensorSpec.of(tensor) for name, tensor in TENSORS.items()}


@pytest.mark.parametrize("order", ["abcd", "dcba"])
def test_safetensors_reads_what_was_written_in_any_order(order, tmp_path) -> None:
    from safetensors.torch import load_file

    file = plan_safetensors_file(tmp_path / "x.safetensors", SPECS)
    for name in order:
        file.write(name, [TENSORS[name]])
    file.finish()
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_what_was_written(mmap, tmp_path) -> None:
    path = tmp_path / "x.pt"
    halves = {"model0": {"a": SPECS["a"], "b": SPECS["b"]}, "model1": {"d": SPECS["d"]}}
    file = plan_torch_file(path, {"iteration": 3}, halves)
    for name in ("model1/d", "model0/a", "model0/b"):
        file.write(name, [TENSORS[name[-1]]])
    file.finish()
    read = torch.load(path, weights_only=True, mmap=mmap)
    assert list(read) == ["iteration", "model0", "model1"]
    assert torch.equal(read["model0"]["a"], TENSORS["a"])
    assert torch.equal(read["model0"]["b"], TENSORS["b"])
    assert torch.equal(read["model1"]["d"], TENSORS["d"])


def test_planning_takes_no_memory_for_the_tensors(tmp_path) -> None:
    # 64 GB, far beyond what could be filled here: only the file's length says so.
    huge = {f"w{i}": TensorSpec(torch.float32, (1 << 30,)) for i in range(16)}
    path = tmp_path / "x.pt"
    plan_torch_file(path, {}, {"model": huge}).close()
    assert path.stat().st_size > 64 << 30
    assert path.stat().st_blocks * 512 < 1 << 20


def test_a_strided_tensor_is_written_in_order(tmp_path) -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    part = matrix[:, 1:3]
    file = plan_torch_file(tmp_path / "x.pt", {}, {"model": {"w": TensorSpec.of(part)}})
    file.write("model/w", [part])
    file.finish()
    assert torch.equal(torch.load(tmp_path / "x.pt")["model"]["w"], part)


def test_accounting(tmp_path) -> None:
    file = plan_safetensors_file(tmp_path / "x.safetensors", SPECS)
    file.write("a", [TENSORS["a"]])
    with pytest.raises(ValueError, match="a is written twice"):
        file.write("a", [TENSORS["a"]])
    with pytest.raises(ValueError, match=r"b is .*float16"):
        file.write("b", [TENSORS["b"].half()])
    with pytest.raises(ValueError, match=r"b is "):
        file.write("b", [TENSORS["b"][:4]])
    with pytest.raises(KeyError):
        file.write("z", [TENSORS["a"]])
    with pytest.raises(ValueError, match="never written: b, c, d"):
        file.finish()


def test_shards_keep_to_the_limit_and_lose_nothing() -> None:
    specs = {f"w{i}": TensorSpec(torch.float32, (i,)) for i in range(1, 20)}
    shards = shard(specs, limit=100)
    assert [name for group in shards.values() for name in group] == list(specs)
    for group in shards.values():
        assert len(group) == 1 or sum(spec.nbytes for spec in group.values()) <= 100
    assert list(shard(specs, limit=10_000)) == ["model.safetensors"]


def test_a_failing_item_stops_the_others(tmp_path) -> None:
    begun = []

    def move(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise RuntimeError("disk on fire")
        time.sleep(0.001)
        return 1

    with pytest.raises(RuntimeError, match="disk on fire"):
        fill(move, range(2000), [], SimpleNamespace(wrote=lambda _: None))
    assert len(begun) < 2000
