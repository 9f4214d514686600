"""Levels, listing and the small patches of the adaptor."""

from __future__ import annotations

import warnings

import pytest
import torch

import mindspeed.megatron_adaptor as adaptor
from mindspeed.errors import UserError


@pytest.mark.parametrize(
    ("argv", "environment", "level"),
    [
        ([], None, 2),
        ([], "1", 1),
        (["--optimization-level", "0"], "1", 0),
        (["--optimization-level=1"], None, 1),
    ],
)
def test_level_from_command_line_then_environment(monkeypatch, argv, environment, level):
    monkeypatch.delenv(adaptor.ENV_LEVEL, raising=False)
    if environment is not None:
        monkeypatch.setenv(adaptor.ENV_LEVEL, environment)
    assert adaptor.requested_level(argv) == level


def test_a_wrong_level_is_refused():
    with pytest.raises(UserError, match="--optimization-level is '3'"):
        adaptor.requested_level(["--optimization-level", "3"])


def test_every_patch_is_named_and_says_why():
    import megatron.core.optimizer
    import megatron.core.transformer.moe.moe_utils  # noqa: F401

    listing = adaptor.patches()
    assert len({info.name for info in listing}) == len(listing) > 10
    for info in listing:
        assert info.reason and info.target and info.owner and info.level in (0, 1, 2)
    states = {info.name: info.state for info in listing}
    assert states["cpu.stay"] == states["optimizer.own-step"] == "applied"


def test_the_page_on_devices_lists_every_patch():
    from pathlib import Path

    from mindspeed.features import FEATURES

    page = (Path(__file__).resolve().parents[3] / "docs" / "devices.md").read_text()
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {patch.name for feature in FEATURES for patch in feature.patches} <= listed


def test_router_product_without_transformer_engine():
    from megatron.core.transformer.moe import moe_utils

    assert moe_utils.te_general_gemm is None


def test_split_sizes_become_python_numbers():
    from megatron.core.transformer.moe.moe_utils import maybe_move_tensor_to_cpu

    assert maybe_move_tensor_to_cpu(torch.tensor([3, 4]), as_numpy=True).tolist() == [3, 4]
    assert maybe_move_tensor_to_cpu(None, as_numpy=True) is None


def test_compiled_functions_are_plain():
    from megatron.core.fusions import fused_bias_swiglu
    from megatron.core.jit import jit_fuser

    def function():
        return 1

    assert jit_fuser(function) is function
    assert not hasattr(fused_bias_swiglu.swiglu, "_torchdynamo_orig_callable")


def test_random_tracker_forks_repeat_and_do_not_warn():
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    torch.manual_seed(1)
    tracker = CudaRNGStatesTracker()
    tracker.add("a", 11)
    tracker.add("b", 12)
    outside = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tracker.fork("a"):
            first = torch.rand(2)
            with tracker.fork("b"):
                inner = torch.rand(2)
            second = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), outside)
    torch.manual_seed(11)
    assert torch.equal(first, torch.rand(2)) and torch.equal(second, torch.rand(2))
    torch.manual_seed(12)
    assert torch.equal(inner, torch.rand(2))
    assert set(tracker.get_states()) == {"a", "b"}
    with pytest.raises(KeyError, match="was not added"), tracker.fork("c"):
        pass
