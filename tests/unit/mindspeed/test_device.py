"""Choosing a device, refusing one that is absent, and what a device answers."""

from __future__ import annotations

import pytest
import torch

from mindspeed import device as devices
from mindspeed.device import CpuDevice, CudaDevice, NpuDevice, choose
from mindspeed.errors import UserError


def found(monkeypatch: pytest.MonkeyPatch, npu: bool, cuda: bool) -> None:
    monkeypatch.setattr(devices.npu, "usable", lambda: (npu, "2 NPU(s)" if npu else "no torch_npu"))
    monkeypatch.setattr(devices.cuda, "usable", lambda: (cuda, "2 GPU(s)" if cuda else "no CUDA"))


@pytest.mark.parametrize(
    ("npu", "cuda", "wanted", "kind"),
    [
        (True, True, "", NpuDevice),
        (False, True, "", CudaDevice),
        (False, False, "", CpuDevice),
        (True, True, "cpu", CpuDevice),
        (True, True, "cuda", CudaDevice),
        (True, False, "npu", NpuDevice),
    ],
)
def test_order_and_override(monkeypatch, npu, cuda, wanted, kind):
    found(monkeypatch, npu, cuda)
    device = choose(wanted)
    assert type(device) is kind
    assert device.reason and "\n" not in device.reason


@pytest.mark.parametrize("wanted", ["npu", "cuda"])
def test_an_absent_device_is_refused_with_what_was_found(monkeypatch, wanted):
    found(monkeypatch, npu=False, cuda=False)
    with pytest.raises(UserError, match=f"MINDSPEED_DEVICE={wanted}.*no "):
        choose(wanted)


def test_an_unknown_device_is_refused():
    with pytest.raises(UserError, match="'tpu' is not a device"):
        choose("tpu")


def test_adpt_02_more_processes_than_devices(monkeypatch):
    """ADPT-02: eight processes on two devices end in a plain message."""
    device = CudaDevice("test")
    monkeypatch.setattr(device, "count", lambda: 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(UserError, match=r"8 processes .* 2 cuda device"):
        device.set_current(0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="3 processes"):
        device.check_process_count(local_rank=2)
    device.check_process_count(local_rank=1)


def test_any_number_of_processes_share_a_cpu(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    device = choose("cpu")
    device.set_current(63)
    assert device.count() == 64


def test_cpu_memory_and_random_state():
    device = CpuDevice("test")
    device.reset_peak_memory()
    before, _ = device.memory_bytes()
    block = torch.ones(256 << 20, dtype=torch.uint8)
    held, peak = device.memory_bytes()
    assert held - before > 192 << 20 and peak >= held and block.sum() > 0
    assert device.total_memory_bytes() > held

    device.seed(5)
    state = device.get_rng_state()
    first = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(first, torch.rand(3))
    assert {"processor", "cores"} <= set(device.versions())
    assert device.torch_device(3) == torch.device("cpu") and device.backend == "gloo"
