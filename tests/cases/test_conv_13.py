"""CONV-13: every slice of every expert is saved and comes back, whatever EP, ETP, TP and PP are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mindspeed_llm.flags import parse, validate
from mindspeed_llm.model_source import resolve_model
from tests.families import write_tiny_hf
from tests.parallel.layouts import train_flags
from tests.unit.checkpoint.tiny import assert_same, rank_files, store, to_hf, to_mg, weights

# (TP, EP, ETP, PP)
LAYOUTS = [(1, 2, 1, 1), (2, 2, 1, 1), (2, 2, 2, 1), (2, 1, 2, 2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Four experts; each expert's matrices hold its own number."""
    folder = write_tiny_hf(tmp_path_factory.mktemp("conv13") / "model", "mixtral")
    tensors = weights(folder)
    for name, tensor in tensors.items():
        if ".experts." in name:
            expert = int(name.split(".experts.")[1].split(".")[0])
            tensors[name] = torch.full_like(tensor, expert + 1)
    store(folder, tensors)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda sizes: "TP{} EP{} ETP{} PP{}".format(*sizes))
def test_conv_13_all_slices_are_there(model, tmp_path, layout) -> None:
    """CONV-13: over all ranks, each expert's number is stored as often as it has weights."""
    tp, ep, etp, pp = layout
    flags = ("--target-expert-parallel-size", str(ep), "--expert-tensor-parallel-size", str(etp))
    root = to_mg(model, tmp_path / "mg", *flags, tp=tp, pp=pp)
    source = weights(model)
    numbers = torch.zeros(8, dtype=torch.long)
    for tensor in (t for name, t in source.items() if ".experts." in name):
        numbers[int(tensor.flatten()[0])] += tensor.numel()
    found = torch.zeros_like(numbers)
    for content in rank_files(root).values():
        for name, tensor in content["model"].items():
            if ".experts." in name:
                (value,) = tensor.unique().tolist()
                found[int(value)] += tensor.numel()
    # A rank file holds what its rank needs: with ETP below TP the same slice lies in several.
    copies = len(rank_files(root)) // (ep * etp * pp)
    assert torch.equal(found, numbers * copies)
    assert_same(source, weights(to_hf(root, tmp_path / "hf")))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda sizes: "TP{} EP{} ETP{} PP{}".format(*sizes))
def test_conv_13_four_processes_are_accepted(model, layout) -> None:
    """CONV-13: TP x PP and ETP x EP x PP each divide the processes; they are not multiplied."""
    tp, ep, etp, pp = layout
    argv = train_flags(
        model,
        Path("unused"),
        tensor_model_parallel_size=tp,
        sequence_parallel=tp > 1,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp,
        pipeline_model_parallel_size=pp,
    )
    config = parse("pretrain", argv)
    derived = validate(resolve_model(config, config.checkpoint.load).fill(config), world_size=4)
    assert derived.data_parallel_size == 4 // (tp * pp)
