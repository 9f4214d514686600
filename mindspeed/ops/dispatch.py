"""Which form of an operator is used: its plain reference, or the fastest form on this device.

Each operator is an :class:`Op` with a list of forms, the fastest first. A form is used if the
optimization level allows it and its ``usable`` check agrees; the last form is the reference, which
always works. :func:`ops_in_use` is what the start-up block prints.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspeed.device import get_device

REFERENCE = "reference"

_ops: dict[str, Op] = {}
_level = 2


def set_level(level: int) -> None:
    """Use only references (0) or the fastest forms (1 and above)."""
    global _level
    _level = level
    for op in _ops.values():
        op.forget()


def ops_in_use() -> dict[str, str]:
    """The form of every operator that has been defined, by operator name."""
    return {name: op.form.name for name, op in sorted(_ops.items())}


def describe() -> str:
    """The same in one line."""
    return ", ".join(f"{name}: {form}" for name, form in ops_in_use().items())


@dataclass(frozen=True)
class Form:
    """One way to compute an operator.

    Attributes:
        name: as shown to the user ("one pass", "liger", ...).
        devices: device names it is for.
        load: returns the function; may import what it needs.
        usable: whether it can be used here (a package is importable, ...).
    """

    name: str
    devices: tuple[str, ...]
    load: Callable[[], Callable[..., Any]]
    usable: Callable[[], bool] = lambda: True


def importable(package: str) -> Callable[[], bool]:
    """A ``usable`` check: whether ``package`` is installed (it is not imported)."""
    return lambda: importlib.util.find_spec(package) is not None


class Op:
    """An operator with several forms; calling it calls the chosen one."""

    def __init__(self, name: str, forms: list[Form], reference: Callable[..., Any]) -> None:
        self.name = name
        self._forms = forms
        self._reference = Form(REFERENCE, ("cpu", "cuda", "npu"), lambda: reference)
        self.forget()
        _ops[name] = self

    def forget(self) -> None:
        """Choose again at the next call."""
        self._form: Form | None = None
        self._function: Callable[..., Any] | None = None

    @property
    def form(self) -> Form:
        """The form in use."""
        if self._form is None:
            device = get_device().name
            candidates = self._forms if _level > 0 else []
            self._form = next(
                (form for form in candidates if device in form.devices and form.usable()),
                self._reference,
            )
        return self._form

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            self._function = self.form.load()
        return self._function(*args, **kwargs)
