"""The view of torch that Megatron gets on a CPU, and that only Megatron gets it."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from mindspeed.device import CpuDevice
from mindspeed.device.torch_view import cpu_view

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def view():
    return cpu_view(CpuDevice("test"))


def test_factories_with_any_name_of_the_device(view):
    for device in ("cuda", "cuda:3", 0, torch.device("cuda", 1), view.cuda.current_device(), None):
        assert view.zeros(2, device=device).device == CPU
        assert view.empty_like(torch.ones(2), device=device).device == CPU
    assert view.tensor([1], pin_memory=True, device="cuda").device == CPU
    assert view.zeros(2, device="meta").device.type == "meta"


def test_devices(view):
    assert view.device("cuda", 3) == view.device("cuda:1") == view.device(0) == CPU
    assert view.device("meta") == torch.device("meta")
    assert isinstance(CPU, view.device)
    assert view.cuda.current_device() == CPU and view.cuda.is_available()


def test_streams_and_events(view):
    start, end = view.cuda.Event(enable_timing=True), view.cuda.Event(enable_timing=True)
    start.record()
    with view.cuda.stream(view.cuda.Stream()):
        view.cuda.current_stream().wait_stream(view.cuda.default_stream())
    end.record()
    view.cuda.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    view.cuda.nvtx.range_push("x")
    view.cuda.nvtx.range_pop()


def test_random_state_is_the_cpu_s(view):
    view.cuda.manual_seed(3)
    state = view.cuda.get_rng_state()
    first = torch.rand(2)
    view.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(2))
    view.cuda.default_generators[0].set_state(state)
    assert torch.equal(first, torch.rand(2))


def test_memory_statistics(view):
    assert view.cuda.max_memory_allocated() >= view.cuda.memory_allocated() > 0
    assert view.cuda.memory_stats()["allocated_bytes.all.peak"] > 0
    free, total = view.cuda.mem_get_info()
    assert 0 < free < total


def test_compilers_are_the_identity(view):
    def function():
        return 1

    assert view.compile(function) is function and view.jit.script(function) is function
    assert view.compile(dynamic=True)(function) is function


def test_everything_else_is_torch(view, monkeypatch):
    assert view.nn is torch.nn and view.Tensor is torch.Tensor
    assert view.distributed.ProcessGroup is torch.distributed.ProcessGroup
    monkeypatch.setattr(torch, "something_new", 5, raising=False)
    assert view.something_new == 5
    with pytest.raises(AttributeError):
        view.no_such_name  # noqa: B018


def test_moving_to_the_device_is_redirected_for_megatron_only():
    import mindspeed.megatron_adaptor  # noqa: F401

    source = "def move(x): return x.cuda()\ndef pin(x): return x.pin_memory()"
    megatron, other = types.ModuleType("megatron.test_move"), types.ModuleType("other")
    for module in (megatron, other):
        exec(source, module.__dict__)
    tensor, linear = torch.ones(2), torch.nn.Linear(2, 2)
    assert megatron.move(tensor) is tensor and megatron.move(linear) is linear
    assert megatron.pin(tensor) is tensor
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, RuntimeError)):
            other.move(tensor)


def test_only_megatron_s_modules_have_the_view():
    from megatron.core import parallel_state

    import mindspeed.megatron_adaptor  # noqa: F401

    assert parallel_state.torch is not torch
    assert sys.modules["torch"] is torch and torch.zeros.__module__ != "mindspeed"
