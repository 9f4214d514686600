"""Runs Megatron-Core on a CPU: what it hard-codes to CUDA is given its meaning there.

Megatron's own modules get a view of ``torch`` (:mod:`mindspeed.device.torch_view`); of torch itself
only three methods are touched, and those act only when Megatron calls them.
"""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from mindspeed.device import get_device
from mindspeed.device.torch_view import cpu_view, identity_decorator
from mindspeed.features.base import Feature, Level
from mindspeed.patching import (
    PackagePatch,
    ProcessPatch,
    SymbolPatch,
    Undo,
    set_attribute,
)

_CPU = ("cpu",)


def _use_view(module: ModuleType) -> list[Undo]:
    """Replace the module's global ``torch`` (bound by ``import torch``) by the CPU view."""
    if module.__dict__.get("torch") is not torch:
        return []
    return [set_attribute(module, "torch", _view())]


_the_view: ModuleType | None = None


def _view() -> ModuleType:
    global _the_view
    if _the_view is None:
        _the_view = cpu_view(get_device())
    return _the_view


def _functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """The Python functions that a module defines, methods included."""
    owners: list[Any] = [module]
    owners += [c for c in vars(module).values() if inspect.isclass(c) and _defined_in(c, module)]
    for owner in owners:
        for value in list(vars(owner).values()):
            value = getattr(value, "__func__", value)  # classmethod and staticmethod objects
            value = inspect.unwrap(value) if callable(value) else value
            if isinstance(value, FunctionType) and _defined_in(value, module):
                yield value


def _defined_in(thing: Any, module: ModuleType) -> bool:
    return getattr(thing, "__module__", None) == module.__name__


def _rename_tensor_types(module: ModuleType) -> list[Undo]:
    """Let ``tensor.type() == 'torch.cuda.FloatTensor'`` compare with the CPU's type names.

    The strings are constants of the optimizers' code; functions keep their identity.
    """
    undo: list[Undo] = []
    for function in _functions_of(module):
        code = _with_cpu_types(function.__code__)
        if code is not function.__code__:
            undo.append(set_attribute_of_function(function, code))
    return undo


def set_attribute_of_function(function: FunctionType, code: CodeType) -> Undo:
    """Give ``function`` another code object; the result restores its own."""
    before = function.__code__
    function.__code__ = code

    def undo() -> None:
        function.__code__ = before

    return undo


def _with_cpu_types(constant: Any) -> Any:
    """``constant`` with the device left out of tensor type names; itself if there are none."""
    if isinstance(constant, str):
        is_type_name = constant.startswith("torch.cuda.") and constant.endswith("Tensor")
        return constant.replace("torch.cuda.", "torch.") if is_type_name else constant
    if isinstance(constant, tuple):
        parts = tuple(_with_cpu_types(part) for part in constant)
        return constant if all(map(operator.is_, parts, constant)) else parts
    if isinstance(constant, CodeType):
        parts = _with_cpu_types(constant.co_consts)
        return constant if parts is constant.co_consts else constant.replace(co_consts=parts)
    return constant


def _uncompile(module: ModuleType) -> list[Undo]:
    """Undo ``torch.compile`` on what the module holds, and stop it from compiling more."""
    undo: list[Undo] = []
    owners: list[Any] = [module]
    owners += [c for c in vars(module).values() if inspect.isclass(c) and _defined_in(c, module)]
    for owner in owners:
        for name, value in list(vars(owner).items()):
            original = getattr(value, "_torchdynamo_orig_callable", None)
            if original is not None:
                undo.append(set_attribute(owner, name, original))
    if module.__dict__.get("jit_fuser") is not None:
        undo.append(set_attribute(module, "jit_fuser", identity_decorator))
    return undo


def _called_from_megatron() -> bool:
    """Whether the caller of the patched method is Megatron's code."""
    return sys._getframe(2).f_globals.get("__name__", "").startswith("megatron.")


def _stay(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that moves to the device: on the CPU its object is already there."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self if _called_from_megatron() else original(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = original.__name__
    return method


def _stay_on_cpu() -> list[Undo]:
    owners = ((torch.Tensor, "cuda"), (torch.Tensor, "pin_memory"), (torch.nn.Module, "cuda"))
    return [set_attribute(owner, name, _stay(getattr(owner, name))) for owner, name in owners]


def _fork(original: Any) -> Any:
    """The tracker's fork without its check that the CPU's generator is left alone: here it *is*
    the device's generator, and every dropout would warn."""

    @contextmanager
    def fork(self: Any, name: str = "model-parallel-rng") -> Iterator[None]:
        if name not in self.states_:
            raise KeyError(f"random state {name} was not added (model_parallel_cuda_manual_seed)")
        outer, state = self._current_state_name, torch.get_rng_state()
        if outer != "default-rng":
            self.states_[outer] = state
        torch.set_rng_state(self.states_[name])
        self._current_state_name = name
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            # An inner fork of the outer name may have moved that state on.
            torch.set_rng_state(self.states_.get(outer, state))
            self._current_state_name = outer

    return fork


def _to_python(original: Any) -> Any:
    """``maybe_move_tensor_to_cpu`` that converts a tensor although it is on the CPU already."""

    def maybe_move_tensor_to_cpu(
        tensor: Any, as_numpy: bool = False, record_stream: bool = False
    ) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    return maybe_move_tensor_to_cpu


_RANDOM = "megatron.core.tensor_parallel.random"

FEATURE = Feature(
    "cpu",
    Level.REQUIRED,
    devices=_CPU,
    patches=(
        PackagePatch(
            "cpu.torch-view",
            "Megatron hard-codes CUDA devices, streams, events, memory and random states",
            "megatron",
            _use_view,
            "torch",
            devices=_CPU,
        ),
        PackagePatch(
            "cpu.tensor-types",
            "the optimizers sort parameters by type names such as torch.cuda.FloatTensor",
            "megatron.core.optimizer",
            _rename_tensor_types,
            "string constants",
            devices=_CPU,
        ),
        PackagePatch(
            "cpu.no-compile",
            "compiling needs a C++ compiler and seconds at the first call of each function",
            "megatron",
            _uncompile,
            "jit_fuser",
            devices=_CPU,
        ),
        ProcessPatch(
            "cpu.stay",
            "Megatron moves tensors to the device and pins memory; acts on its calls only",
            "torch:Tensor.cuda, Tensor.pin_memory, nn.Module.cuda",
            _stay_on_cpu,
            devices=_CPU,
        ),
        SymbolPatch(
            "cpu.random-lazy-call",
            "random states are set at once instead of when CUDA starts",
            f"{_RANDOM}:_lazy_call",
            lambda original: lambda callback, **kwargs: callback(),
            devices=_CPU,
        ),
        SymbolPatch(
            "cpu.random-lazy-init",
            "there is no CUDA to start",
            f"{_RANDOM}:_lazy_init",
            lambda original: lambda: None,
            devices=_CPU,
        ),
        SymbolPatch(
            "cpu.random-fork",
            "the CPU's generator is the device's: its change is no fault to warn of",
            f"{_RANDOM}:CudaRNGStatesTracker.fork",
            _fork,
            devices=_CPU,
        ),
        SymbolPatch(
            "cpu.moe-split-sizes",
            "split sizes are turned into Python numbers only if the tensor is on CUDA",
            "megatron.core.transformer.moe.moe_utils:maybe_move_tensor_to_cpu",
            _to_python,
            devices=_CPU,
        ),
    ),
)
