"""One declaration a flag: a typed dataclass field, from which everything else is derived.

``flag(default, help, ...)`` makes a :func:`dataclasses.field` whose metadata holds the help text,
the spellings, the allowed values and the :mod:`effect <mindspeed_llm.flags.status>`; the type
comes from the annotation. :func:`specs_of` reads a group of them back as :class:`FlagSpec`, which
the command line, the YAML loader, the validation and ``docs/flags.md`` share.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mindspeed_llm.flags.status import ACTIVE, Effect

TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})


TRAINERS = frozenset({"pretrain", "posttrain"})
"""The tools that train."""


class Group:
    """Base of the flag groups: frozen dataclasses whose every field is made by :func:`flag`."""

    title: ClassVar[str]
    """Heading in ``--help``."""
    tools: ClassVar[frozenset[str]] = frozenset()
    """Tools in which the group takes effect; empty: all that accept it."""


def flag(
    default: Any,
    help: str,
    *,
    spellings: tuple[str, ...] = (),
    off: tuple[str, ...] = (),
    deprecated: tuple[str, ...] = (),
    choices: tuple[Any, ...] = (),
    refused: Mapping[Any, str] = types.MappingProxyType({}),
    nargs: int | str | None = None,
    repeatable: bool = False,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    convert: Callable[[str], Any] | None = None,
    effect: Effect = ACTIVE,
    tools: frozenset[str] | None = None,
) -> Any:
    """Declare a flag.

    Args:
        default: value when the flag is not given (Megatron's, unless the help says otherwise).
        help: one or two sentences for ``--help`` and the flag table.
        spellings: how the command line writes it; ``--the-field-name`` when empty.
        off: spellings that set a boolean to False.
        deprecated: old spellings, accepted with a warning.
        choices: all allowed values.
        refused: values that are known but need a missing feature -> the feature's name.
        nargs: as in argparse; the value is then a tuple.
        repeatable: given again on the command line, it adds to the values (else the last wins).
        at_least, above, at_most, below: bounds of numbers (of each number with ``nargs``).
        convert: text -> value where the annotated type is not enough; raises ValueError.
        effect: see :mod:`mindspeed_llm.flags.status`.
        tools: tools in which it takes effect; None: those of its group.
    """
    meta = {key: value for key, value in locals().items() if key != "default"}
    return dataclasses.field(default=default, metadata=meta)


def whole_number(text: str) -> int:
    """Read an integer; ``ValueError`` says so in words."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def real_number(text: str) -> float:
    """Read a finite number; ``ValueError`` says so in words."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def yes_or_no(text: str) -> bool:
    """Read a boolean word (YAML spells booleans; the command line has flags for them)."""
    if text.lower() in TRUE_WORDS:
        return True
    if text.lower() in FALSE_WORDS:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def comma_numbers(text: str) -> tuple[int, ...]:
    """Read ``"15,15,15,16"`` (brackets and blanks allowed)."""
    parts = [part.strip() for part in text.strip().strip("[]").split(",")]
    return tuple(whole_number(part) for part in parts if part)


READERS: dict[type, Callable[[str], Any]] = {
    bool: yes_or_no,
    int: whole_number,
    float: real_number,
    str: str,
}


@dataclass(frozen=True)
class FlagSpec:
    """A flag as its field declares it.

    Attributes:
        dest: attribute name (Megatron's argparse dest).
        group: attribute of :class:`~mindspeed_llm.flags.config.Config` that holds it.
        kind: bool, int, float or str: type of the value, or of each with ``nargs``.
        on: spellings that take a value, or set a boolean to True.
    """

    dest: str
    group: str
    kind: type
    default: Any
    help: str
    on: tuple[str, ...]
    off: tuple[str, ...]
    deprecated: tuple[str, ...]
    choices: tuple[Any, ...]
    refused: Mapping[Any, str]
    nargs: int | str | None
    repeatable: bool
    bounds: tuple[tuple[str, float], ...]
    convert: Callable[[str], Any] | None
    effect: Effect
    tools: frozenset[str]

    @property
    def name(self) -> str:
        """The spelling that messages use."""
        return self.on[0] if self.on else self.off[0]

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.on + self.off + self.deprecated

    def spelled(self, value: Any) -> str:
        """How ``value`` is asked for on a command line."""
        if self.kind is bool and self.nargs is None:
            if value or not self.off:
                return self.name if value else f"no {self.name}"
            return self.off[0]
        items = value if isinstance(value, tuple) else (value,)
        glue = "," if self.nargs is None else " "
        return f"{self.name} {glue.join(str(item) for item in items)}"

    def read(self, text: str) -> Any:
        """Text -> value (one value with ``nargs``); ``ValueError`` says what is allowed."""
        value = (self.convert or READERS[self.kind])(text)
        if self.choices and value not in self.choices and value not in self.refused:
            raise ValueError(f"{text!r} is not one of {', '.join(map(str, self.choices))}")
        for number in value if isinstance(value, tuple) else (value,):
            self._check_bounds(number)
        return value

    def _check_bounds(self, number: Any) -> None:
        for word, bound in self.bounds:
            inside = {
                "at least": number >= bound,
                "above": number > bound,
                "at most": number <= bound,
                "below": number < bound,
            }[word]
            if not inside:
                allowed = " and ".join(f"{w} {b:g}" for w, b in self.bounds)
                raise ValueError(f"{number!r} is out of range: it must be {allowed}")


def _base_type(hint: Any) -> type:
    """``int | None`` -> int, ``tuple[str, ...]`` -> str."""
    arguments = [a for a in typing.get_args(hint) if a not in (type(None), Ellipsis)]
    return _base_type(arguments[0]) if arguments else hint


def _spec(group: str, owner: type[Group], field: dataclasses.Field, hint: Any) -> FlagSpec:
    meta = field.metadata
    spelling = "--" + field.name.replace("_", "-")
    on = meta["spellings"] or (() if meta["off"] and field.default is True else (spelling,))
    words = {"at least": "at_least", "above": "above", "at most": "at_most", "below": "below"}
    return FlagSpec(
        dest=field.name,
        group=group,
        kind=_base_type(hint),
        default=field.default,
        help=meta["help"],
        on=on,
        off=meta["off"],
        deprecated=meta["deprecated"],
        choices=meta["choices"],
        refused=meta["refused"],
        nargs=meta["nargs"],
        repeatable=meta["repeatable"],
        bounds=tuple((w, meta[key]) for w, key in words.items() if meta[key] is not None),
        convert=meta["convert"],
        effect=meta["effect"],
        tools=owner.tools if meta["tools"] is None else meta["tools"],
    )


def specs_of(group: str, owner: type[Group]) -> tuple[FlagSpec, ...]:
    """The flags that the group class ``owner``, kept under the name ``group``, declares."""
    hints = typing.get_type_hints(owner)
    fields = dataclasses.fields(owner)  # type: ignore[arg-type]
    return tuple(_spec(group, owner, field, hints[field.name]) for field in fields)
