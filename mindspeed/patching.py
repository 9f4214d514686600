"""Replacing symbols of other packages: named, with a reason, revertibly, in any import order.

A patch waits for its module: if the module is loaded, it is patched now, otherwise right after its
own code has run, through an import hook. Nothing is imported only to be patched. If anything fails,
everything done so far is undone and a :class:`PatchError` says what did not fit.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

ALL_DEVICES = ("cpu", "cuda", "npu")
_MISSING = object()

Undo = Callable[[], None]


class PatchError(RuntimeError):
    """A patch does not fit what it is meant to patch; nothing is left half-patched."""


@dataclass(frozen=True)
class Patch(ABC):
    """One named change to another package.

    Attributes:
        name: short unique name, shown by ``doctor --patches``.
        reason: why it is needed, one line.
        devices: the devices that it is for.
    """

    name: str
    reason: str
    devices: tuple[str, ...] = field(default=ALL_DEVICES, kw_only=True)

    @property
    @abstractmethod
    def target(self) -> str:
        """What is replaced, for listings."""

    def matches(self, module_name: str) -> bool:
        """Whether the module of this name is to be patched."""
        return False

    def apply_to(self, module: ModuleType) -> list[Undo]:
        """Patch one loaded module; returns how to undo it (empty: there was nothing to do)."""
        return []

    def install(self) -> list[Undo]:
        """Do what does not belong to one module, before any module is patched."""
        return []


@dataclass(frozen=True)
class SymbolPatch(Patch):
    """Replaces ``module:attribute.path``.

    ``make`` gets the original (None if ``may_be_missing`` and it is) and returns the replacement.
    Other modules that did ``from module import symbol`` before get the replacement too, if the
    symbol was defined in that module.
    """

    symbol: str
    make: Callable[[Any], Any]
    may_be_missing: bool = field(default=False, kw_only=True)

    @property
    def target(self) -> str:
        return self.symbol

    def matches(self, module_name: str) -> bool:
        return module_name == self.symbol.partition(":")[0]

    def apply_to(self, module: ModuleType) -> list[Undo]:
        *parents, attribute = self.symbol.partition(":")[2].split(".")
        owner: Any = module
        for parent in parents:
            owner = getattr(owner, parent, _MISSING)
        original = _own_attribute(owner, attribute)
        if original is _MISSING and not self.may_be_missing:
            raise PatchError(
                f"patch {self.name}: {self.symbol} does not exist in {module.__file__}. "
                "This version of the package is not supported (megatron-core 0.16 is)"
            )
        replacement = self.make(None if original is _MISSING else original)
        undo = [set_attribute(owner, attribute, replacement)]
        defined_here = getattr(original, "__module__", None) == module.__name__
        if not parents and defined_here and replacement is not original:
            undo += _replace_aliases(original, replacement)
            package = module.__name__.partition(".")[0]
            # Modules imported in between took the replacement; they are given the original.
            undo.append(lambda: _return_aliases(package, replacement, original))
        return undo


@dataclass(frozen=True)
class PackagePatch(Patch):
    """Does something to every module of a package, loaded now or later.

    ``change`` gets the module and returns the undo steps.
    """

    package: str
    change: Callable[[ModuleType], list[Undo]]
    what: str

    @property
    def target(self) -> str:
        return f"{self.package}.*:{self.what}"

    def matches(self, module_name: str) -> bool:
        return module_name == self.package or module_name.startswith(self.package + ".")

    def apply_to(self, module: ModuleType) -> list[Undo]:
        return self.change(module)


@dataclass(frozen=True)
class ProcessPatch(Patch):
    """Changes something of the whole process: ``action`` does it and says how to undo it."""

    what: str
    action: Callable[[], list[Undo]]

    @property
    def target(self) -> str:
        return self.what

    def install(self) -> list[Undo]:
        return self.action()


def _own_attribute(owner: Any, attribute: str) -> Any:
    """The attribute as stored (a class keeps its staticmethod and property objects)."""
    if isinstance(owner, type):
        for base in owner.__mro__:
            if attribute in base.__dict__:
                return base.__dict__[attribute]
        return _MISSING
    return getattr(owner, attribute, _MISSING)


def set_attribute(owner: Any, attribute: str, value: Any) -> Undo:
    """Set an attribute; the returned function restores what was there, or its absence."""
    before = vars(owner).get(attribute, _MISSING)
    setattr(owner, attribute, value)

    def undo() -> None:
        if before is _MISSING:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, before)

    return undo


def _replace_aliases(original: Any, replacement: Any) -> list[Undo]:
    undo: list[Undo] = []
    for name, module in list(sys.modules.items()):
        if module is None or name.partition(".")[0] in ("torch", "mindspeed", "numpy"):
            continue
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is original:
                undo.append(set_attribute(module, attribute, replacement))
    return undo


def _return_aliases(package: str, replacement: Any, original: Any) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is replacement:
                    setattr(module, attribute, original)


@dataclass
class _Record:
    """What became of one patch."""

    owner: str
    level: int
    patch: Patch
    modules: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PatchInfo:
    """One line of the listing: see :meth:`Patcher.listing`."""

    name: str
    target: str
    owner: str
    level: int
    devices: tuple[str, ...]
    reason: str
    modules: tuple[str, ...]

    @property
    def state(self) -> str:
        if not self.modules:
            return "waits for its module"
        return "applied" if len(self.modules) == 1 else f"applied in {len(self.modules)} modules"


class Patcher:
    """A set of patches that is applied and reverted as a whole."""

    def __init__(self) -> None:
        self._records: list[_Record] = []
        self._undo: list[Undo] = []
        self._hook: _ImportHook | None = None

    @property
    def active(self) -> bool:
        return self._hook is not None

    def add(self, owner: str, level: int, patches: Iterable[Patch]) -> None:
        """Register patches under the feature that owns them, before :meth:`apply`."""
        names = {record.patch.name for record in self._records}
        for patch in patches:
            if patch.name in names:
                raise PatchError(f"two patches are named {patch.name}")
            names.add(patch.name)
            self._records.append(_Record(owner, level, patch))

    def apply(self) -> None:
        """Patch every module that is loaded and watch for the rest. Twice is harmless.

        Raises:
            PatchError: a patch does not fit; everything is as before.
        """
        if self.active:
            return
        self._hook = _ImportHook(self)
        sys.meta_path.insert(0, self._hook)
        try:
            for record in self._records:
                undo = record.patch.install()
                if undo:
                    self._undo += undo
                    record.modules.append("process")
            for name, module in list(sys.modules.items()):
                if self.wants(name) and isinstance(module, ModuleType):
                    self.patch_module(module)
        except BaseException:
            self.revert()
            raise

    def revert(self) -> None:
        """Restore every replaced symbol, last one first, and stop watching imports."""
        if self._hook is not None:
            sys.meta_path.remove(self._hook)
            self._hook = None
        while self._undo:
            self._undo.pop()()
        for record in self._records:
            record.modules.clear()

    def clear(self) -> None:
        """Revert and forget all patches."""
        self.revert()
        self._records.clear()

    def wants(self, module_name: str) -> bool:
        """Whether any patch is for the module of this name."""
        return any(record.patch.matches(module_name) for record in self._records)

    def patch_module(self, module: ModuleType) -> None:
        """Apply what is meant for ``module``; on failure all patches everywhere are reverted."""
        loading = getattr(getattr(module, "__spec__", None), "_initializing", False)
        for record in self._records:
            if not record.patch.matches(module.__name__) or module.__name__ in record.modules:
                continue
            try:
                undo = record.patch.apply_to(module)
            except Exception as error:
                self.revert()
                hint = " (it is still being imported: apply the patches earlier)" if loading else ""
                if isinstance(error, PatchError) and not hint:
                    raise
                raise PatchError(
                    f"patch {record.patch.name} on {module.__name__} failed: {error}{hint}"
                ) from error
            if undo:
                self._undo += undo
                record.modules.append(module.__name__)

    def listing(self) -> list[PatchInfo]:
        """All registered patches, in order, and where each is in force."""
        return [
            PatchInfo(
                record.patch.name,
                record.patch.target,
                record.owner,
                record.level,
                record.patch.devices,
                record.patch.reason,
                tuple(record.modules),
            )
            for record in self._records
        ]


class _ImportHook(importlib.abc.MetaPathFinder):
    """Finds modules as the other finders do, and patches them once their own code has run."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher

    def find_spec(self, fullname, path=None, target=None):
        if not self._patcher.wants(fullname):
            return None
        for finder in self._others():
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _others(self) -> Iterator[Any]:
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec"):
                yield finder

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader: Any = spec.loader
        # A namespace package ("megatron" itself) runs no code and so has nothing to patch.
        if loader is None or not hasattr(loader, "__dict__") or not hasattr(loader, "exec_module"):
            return
        own_exec = loader.exec_module

        def exec_then_patch(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was found again
            own_exec(module)
            if self._patcher.active:
                self._patcher.patch_module(module)

        loader.exec_module = exec_then_patch


patcher = Patcher()
"""The process-wide set that ``mindspeed.megatron_adaptor`` fills."""
