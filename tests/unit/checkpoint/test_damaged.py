"""Every damaged folder ends in one message, an exit status, and nothing left behind.

``convert`` stops before it writes; ``inspect`` lists what is wrong.
"""

from __future__ import annotations

import json
import re

import pytest
import torch

from mindspeed_llm.cli import dispatch
from mindspeed_llm.console import entry_point
from tests.unit.checkpoint import tiny
from tests.unit.checkpoint.damages import DAMAGES
from tests.unit.checkpoint.tiny import to_mg, weights

assert len(DAMAGES) >= 30
# What only the target's form makes impossible.
FINE_TO_INSPECT = ("mixed types in one tensor",)


def run(*words: object) -> int:
    """The command's exit status."""
    with pytest.raises(SystemExit) as end:
        entry_point(dispatch, [str(word) for word in words])
    return int(end.value.code or 0)


@pytest.mark.parametrize("name", DAMAGES)
def test_convert_says_what_is_wrong_and_leaves_nothing(name, own_hf, scratch, capsys) -> None:
    spoil, message = DAMAGES[name]
    folder = own_hf("llama")
    spoil(folder)
    before = sorted(path.name for path in scratch.rglob("*"))
    assert run("convert", "--load-dir", folder, "--save-dir", scratch / "out") == 2
    said = capsys.readouterr().err
    assert re.search(message, said, re.S), said
    assert "Traceback" not in said
    assert len(said.splitlines()) < 20
    assert sorted(path.name for path in scratch.rglob("*")) == before


@pytest.mark.parametrize("name", DAMAGES)
def test_inspect_finds_it_too(name, own_hf, capsys) -> None:
    folder = own_hf("llama")
    DAMAGES[name][0](folder)
    status = run("inspect", folder, "--json")
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    problems = json.loads(out)["problems"]
    assert bool(problems) == (name not in FINE_TO_INSPECT) == bool(status)


def test_nan_weights_are_named_and_carried_over(own_hf, scratch, capsys) -> None:
    """Not an error: the weights are what they are; but nobody should train from them unwarned."""
    folder = own_hf("llama")
    stored = weights(folder)
    stored["model.layers.2.mlp.down_proj.weight"][1, 2] = float("nan")
    stored["model.norm.weight"][5] = float("inf")
    tiny.store(folder, stored)
    tiny.main(["--load-dir", str(folder), "--save-dir", str(scratch / "mg")])
    said = capsys.readouterr().err
    assert "2 tensors hold NaN or infinite values" in said
    assert "decoder.layers.2.mlp.linear_fc2.weight" in said
    report = json.loads((scratch / "mg" / "conversion.json").read_text())
    assert len(report["not_finite"]) == 2
    assert [check["done"] for check in report["checks"]] == [True, True, False]
    norm = tiny.rank_files(scratch / "mg")["mp_rank_00"]["model"]["decoder.final_layernorm.weight"]
    assert torch.equal(norm, stored["model.norm.weight"])


def test_a_folder_without_architectures_but_with_a_model_type_converts(own_hf, scratch) -> None:
    folder = own_hf("llama")
    tiny.edit_config(folder, architectures=None)
    assert (to_mg(folder, scratch / "mg") / "conversion.json").exists()
