"""``torch`` as Megatron-Core should see it where there is no CUDA: "cuda" means this CPU.

:func:`cpu_view` is a module that answers everything as ``torch`` does, except for what names CUDA.
Megatron's modules get it as their global ``torch``; the real ``torch``, and so the rest of the
process, stays as it is.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from mindspeed.device.base import Device

_FACTORIES = """
    arange as_tensor asarray empty empty_like empty_strided eye full full_like linspace logspace
    ones ones_like rand rand_like randint randint_like randn randn_like randperm tensor
    tril_indices triu_indices zeros zeros_like
""".split()


class View(ModuleType):
    """A module that differs from ``real`` in the given names only; writes go to ``real``."""

    def __init__(self, real: ModuleType, overrides: dict[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__.update(overrides)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._real), *self.__dict__})


def to_cpu(device: Any) -> Any:
    """The CPU for a device that names CUDA (a string, a number or a ``torch.device``)."""
    names_cuda = (
        isinstance(device, int)
        or (isinstance(device, str) and device.startswith("cuda"))
        or (isinstance(device, torch.device) and device.type == "cuda")
    )
    return torch.device("cpu") if names_cuda else device


class _DeviceType(type):
    """Makes ``isinstance(x, view.device)`` mean ``torch.device``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.device)

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
        kind = kwargs.get("type", args[0] if args else None)
        if to_cpu(kind) is not kind:
            return torch.device("cpu")
        return torch.device(*args, **kwargs)


class _TorchDevice(metaclass=_DeviceType):
    pass


class Stream:
    """A stream on a device whose operators are done when they return."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None: ...


class Event:
    """A moment in the only stream; times are those of the host's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seconds = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._seconds = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between this event and ``end``."""
        return (end._seconds - self._seconds) * 1e3


class _Generators:
    """``torch.cuda.default_generators``: there is one generator, whatever the index."""

    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return 1


_STREAM = Stream()


def _nothing(*args: Any, **kwargs: Any) -> None:
    """The CPU has nothing to do here."""


def _constant(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def identity_decorator(fn: Callable | None = None, *args: Any, **kwargs: Any) -> Callable:
    """``torch.compile`` and ``torch.jit.script`` that compile nothing, in both decorator forms."""
    return fn if fn is not None else identity_decorator


def _factory(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(fn)
    def on_cpu(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs:
            kwargs["device"] = to_cpu(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return fn(*args, **kwargs)

    return on_cpu


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> torch.autocast:
    return torch.autocast("cpu" if device_type == "cuda" else device_type, *args, **kwargs)


def _load(*args: Any, **kwargs: Any) -> Any:
    if "map_location" in kwargs:
        kwargs["map_location"] = to_cpu(kwargs["map_location"])
    return torch.load(*args, **kwargs)


def _cuda_namespace(cpu: Device) -> View:
    amp = View(
        torch.cuda.amp,
        {
            "autocast": functools.partial(_autocast, "cpu"),
            "custom_fwd": functools.partial(torch.amp.custom_fwd, device_type="cpu"),
            "custom_bwd": functools.partial(torch.amp.custom_bwd, device_type="cpu"),
        },
    )
    rng = {
        "get_rng_state": lambda device=None: cpu.get_rng_state(),
        "set_rng_state": lambda new_state, device=None: cpu.set_rng_state(new_state),
        "manual_seed": cpu.seed,
        "manual_seed_all": cpu.seed,
        "initial_seed": torch.default_generator.initial_seed,
    }
    memory = {
        "empty_cache": _nothing,
        "memory_allocated": lambda device=None: cpu.memory_bytes()[0],
        "max_memory_allocated": lambda device=None: cpu.memory_bytes()[1],
        "memory_reserved": lambda device=None: cpu.memory_bytes()[0],
        "max_memory_reserved": lambda device=None: cpu.memory_bytes()[1],
        "memory_stats": functools.partial(_memory_stats, cpu),
        "reset_peak_memory_stats": lambda device=None: cpu.reset_peak_memory(),
        "mem_get_info": lambda device=None: _memory_info(cpu),
    }
    streams = {
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "stream": _constant(nullcontext()),
        "current_stream": _constant(_STREAM),
        "default_stream": _constant(_STREAM),
        "set_stream": _nothing,
        "synchronize": _nothing,
    }
    identity = {
        "is_available": _constant(True),
        "is_initialized": _constant(True),
        "init": _nothing,
        "current_device": _constant(torch.device("cpu")),
        "set_device": _nothing,
        "device_count": cpu.count,
        "device": lambda device=None: nullcontext(),
        # What Megatron asks 8.0 for (bf16, grouped products), the CPU does too.
        "get_device_capability": _constant((8, 0)),
        "get_device_name": _constant("cpu"),
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="cpu",
            major=8,
            minor=0,
            total_memory=cpu.total_memory_bytes(),
            multi_processor_count=os.cpu_count(),
        ),
        "is_current_stream_capturing": _constant(False),
        "default_generators": _Generators(),
        "_lazy_call": lambda callback, **kwargs: callback(),
        "_lazy_init": _nothing,
        "nvtx": View(
            torch.cuda.nvtx,
            {
                "range_push": _nothing,
                "range_pop": _nothing,
                "mark": _nothing,
                "range": _constant(nullcontext()),
            },
        ),
        "amp": amp,
        "random": View(torch.cuda.random, rng),
        "memory": View(torch.cuda.memory, memory),
    }
    types = {
        f"{kind}Tensor": getattr(torch, f"{kind}Tensor")
        for kind in ("Float", "Half", "BFloat16", "Double", "Int", "Long", "Byte", "Bool")
    }
    return View(torch.cuda, {**identity, **streams, **memory, **rng, **types})


def _memory_stats(cpu: Device, device: Any = None) -> dict[str, int]:
    current, peak = cpu.memory_bytes()
    return {
        f"{kind}_bytes.all.{when}": value
        for kind in ("allocated", "reserved", "active")
        for when, value in (("current", current), ("peak", peak), ("allocated", peak))
    } | {"num_ooms": 0, "num_alloc_retries": 0}


def _memory_info(cpu: Device) -> tuple[int, int]:
    total = cpu.total_memory_bytes()
    return total - cpu.memory_bytes()[0], total


def _distributed_namespace(device: Device) -> View:
    def on_backend(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def with_backend(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("backend") == "nccl":
                kwargs["backend"] = device.backend
            kwargs.pop("device_id", None)
            return fn(*args, **kwargs)

        return with_backend

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        backend = device.backend if backend == "nccl" else backend
        return torch.distributed.init_process_group(backend, *args, **kwargs)

    return View(
        torch.distributed,
        {
            "init_process_group": init_process_group,
            "new_group": on_backend(torch.distributed.new_group),
        },
    )


def cpu_view(device: Device) -> View:
    """``torch`` with CUDA's names meaning the CPU ``device``."""
    overrides: dict[str, Any] = {name: _factory(getattr(torch, name)) for name in _FACTORIES}
    overrides |= {
        "cuda": _cuda_namespace(device),
        "distributed": _distributed_namespace(device),
        "device": _TorchDevice,
        "autocast": _autocast,
        "load": _load,
        "compile": identity_decorator,
        "jit": View(torch.jit, {"script": identity_decorator}),
    }
    return View(torch, overrides)
