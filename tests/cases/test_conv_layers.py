"""Layers on pipeline stages in conversion: CONV-06."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mindspeed.errors import UserError
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.tiny import assert_same, rank_files, to_hf, to_mg, weights

VPP = "--num-layers-per-virtual-pipeline-stage"
PLACED = [
    (
        30,
        4,
        ("--num-layer-list", "8,8,7,7"),
        [range(8), range(8, 16), range(16, 23), range(23, 30)],
    ),
    (7, 2, ("--num-layer-list", "4,3"), [[0, 1, 2, 3], [4, 5, 6]]),
    (8, 2, (VPP, "2"), [[0, 1, 4, 5], [2, 3, 6, 7]]),
    (8, 4, (VPP, "1"), [[0, 4], [1, 5], [2, 6], [3, 7]]),
    (6, 3, (), [[0, 1], [2, 3], [4, 5]]),
]  # fmt: skip
REFUSED = [
    (30, 4, (), "30 layers do not divide over 4"),
    (7, 2, (), "7 layers do not divide over 2"),
    (30, 4, ("--num-layer-list", "8,8,8,7"), "adds up to 31, the model has 30"),
]


def numbered(folder: Path, layers: int) -> Path:
    """A model in which every number of layer k is k."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": layers}
    source = tiny.make(folder, "llama", **sizes, num_attention_heads=2, num_key_value_heads=1)
    stored = weights(source)
    for name, tensor in stored.items():
        if ".layers." in name:
            layer = name.split(".layers.")[1].split(".")[0]
            stored[name] = torch.full_like(tensor, float(layer))
    tiny.store(source, stored)
    return source


def layers_of(chunk: dict[str, torch.Tensor]) -> list[int]:
    """The value of each local layer of a chunk, in order."""
    count = sum(name.endswith("linear_fc2.weight") for name in chunk)
    found = []
    for local in range(count):
        mine = [t for name, t in chunk.items() if name.startswith(f"decoder.layers.{local}.")]
        values = {int(value) for tensor in mine for value in tensor.unique()}
        assert len(values) == 1, "tensors of different layers were mixed"
        found += values
    return found


@pytest.mark.parametrize("layers, pp, flags, expected", PLACED)
def test_conv_06_indices_read_back(layers, pp, flags, expected, tmp_path) -> None:
    """CONV-06: layer k lies on the stage that the layout says, at the right place."""
    source = numbered(tmp_path / "hf", layers)
    root = to_mg(source, tmp_path / "mg", *flags, pp=pp)
    found = [
        [layer for key in content if key.startswith("model") for layer in layers_of(content[key])]
        for content in rank_files(root).values()
    ]
    assert found == [list(stage) for stage in expected]
    assert_same(weights(source), weights(to_hf(root, tmp_path / "back")))


@pytest.mark.parametrize("layers, pp, flags, message", REFUSED)
def test_conv_06_layers_are_never_dropped(layers, pp, flags, message, tmp_path) -> None:
    """CONV-06: a count that does not divide, or a list with a wrong sum, is refused."""
    source = numbered(tmp_path / "hf", layers)
    with pytest.raises(UserError, match=message):
        to_mg(source, tmp_path / "mg", *flags, pp=pp)
