"""Files load without running code; anything else is refused by name."""

from __future__ import annotations

import argparse
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.safe_load import load_file
from tests.unit.checkpoint.tiny import to_hf, to_mg


class Malicious:
    """Touches a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_malicious_pickle_is_refused_by_name_and_not_run(tmp_path) -> None:
    mark = tmp_path / "ran"
    torch.save({"model": {}, "args": Malicious(mark)}, tmp_path / "x.pt")
    with pytest.raises(UserError, match=r"x\.pt is refused: it would build (posix|nt)\.system"):
        load_file(tmp_path / "x.pt")
    assert not mark.exists()


def test_a_malicious_old_style_file_is_not_run(tmp_path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "x.pt").write_bytes(pickle.dumps(Malicious(mark)))
    with pytest.raises(UserError, match=r"x\.pt"):
        load_file(tmp_path / "x.pt")
    assert not mark.exists()


def test_conversion_refuses_a_malicious_checkpoint(tiny_hf, scratch) -> None:
    root = to_mg(tiny_hf("llama"), scratch / "mg")
    path = root / "iter_0000001/mp_rank_00/model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    content["rng_state"] = Malicious(scratch / "ran")
    torch.save(content, path)
    with pytest.raises(UserError, match="is refused: it would build"):
        to_hf(root, scratch / "out")
    assert not (scratch / "ran").exists()
    assert not (scratch / "out").exists()


def test_what_megatron_stores_beside_weights_is_read(tmp_path) -> None:
    from megatron.core.transformer.enums import AttnBackend

    args = argparse.Namespace(
        attention_backend=AttnBackend.auto, params_dtype=torch.bfloat16, path=Path("/a")
    )
    state = {
        "args": args,
        "rng_state": [{"np_rng_state": np.random.get_state(), "extra": SimpleNamespace(a=1)}],
        "model": {"w": torch.arange(4.0)},
    }
    torch.save(state, tmp_path / "x.pt")
    for mmap in (True, False):
        read = load_file(tmp_path / "x.pt", mmap=mmap)
        assert read["args"].attention_backend is AttnBackend.auto
        assert read["args"].params_dtype is torch.bfloat16
        assert torch.equal(read["model"]["w"], torch.arange(4.0))
        assert np.array_equal(
            read["rng_state"][0]["np_rng_state"][1], state["rng_state"][0]["np_rng_state"][1]
        )


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"text", bytes(1000)])
def test_damaged_files_are_named(content, tmp_path) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.pt"):
        load_file(tmp_path / "x.pt")


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_file(tmp_path / "x.pt")
