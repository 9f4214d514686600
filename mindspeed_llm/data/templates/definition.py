"""A named template as data, and the file it stands in.

``named.yaml`` beside this module holds the built-in ones and explains the fields; a user's file
(``--prompt-type-path``) has the same form, or that of the suites which write templates as lists of
slots (:mod:`mindspeed_llm.data.templates.slots`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError

BUILT_IN = Path(__file__).with_name("named.yaml")


@dataclass(frozen=True)
class Thinking:
    """How a template writes the thinking of an answer.

    Attributes:
        open, close: the marks around it; an answer without thinking has them with nothing between.
        strip: the characters taken off both ends of it; None: all white space.
        empty: which answers without visible thinking get empty marks: ``last``, the one that ends
            the conversation; ``all``.
        answer: how what follows the marks is written; nothing for an empty answer.
        switch_off: appended to a user's text when thinking is switched off.
        keep: earlier answers keep their thinking; else those before the last question lose it.
    """

    open: str
    close: str
    strip: str | None = "\n"
    empty: str = "last"
    answer: str = "{content}"
    switch_off: str = ""
    keep: bool = False


@dataclass(frozen=True)
class Definition:
    """A named template; ``named.yaml`` explains the fields."""

    name: str
    prefix: str = ""
    system: str | None = "{content}"
    default_system: str | None = None
    system_in_user: str = ""
    system_anywhere: bool = False
    user: str = "{content}"
    opening: str = ""
    assistant: str = "{content}"
    end: str = "{eos}"
    last_end: str = ""
    next: dict[str, str] = field(default_factory=dict)
    closing: str = ""
    between: str = ""
    tool_result: str | None = None
    tools: str | None = None
    thinking: Thinking | None = None
    trim: bool = False
    alternate: bool = False
    stop: tuple[str, ...] = ()
    eos: str | None = None
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Definitions:
    """What a file defines.

    Attributes:
        by_name: the templates.
        refused: names that are known but not written, with the reason.
    """

    by_name: dict[str, Definition]
    refused: dict[str, str]

    def get(self, name: str) -> Definition:
        """The template called ``name``.

        Raises:
            UserError: there is none (with the names near to it), or it is refused.
        """
        if name in self.by_name:
            return self.by_name[name]
        if name in self.refused:
            raise UserError(f"--prompt-type {name} is not available: {self.refused[name]}")
        near = difflib.get_close_matches(name, self.by_name, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else ""
        raise UserError(
            f"--prompt-type {name}: no such template. {hint} There is: auto (the tokenizer's own), "
            f"{', '.join(sorted(self.by_name))}."
        )


@functools.cache
def built_in() -> Definitions:
    """The templates of ``named.yaml``."""
    return read_definitions(BUILT_IN)


def load_definitions(path: Path | None) -> Definitions:
    """The built-in templates, and those of a user's file, which win.

    Raises:
        UserError: no such file, or not a file of templates.
    """
    ours = built_in()
    if path is None:
        return ours
    theirs = read_definitions(path)
    return Definitions(
        {**ours.by_name, **theirs.by_name},
        {name: why for name, why in ours.refused.items() if name not in theirs.by_name},
    )


def read_definitions(path: Path) -> Definitions:
    """The templates that a YAML or JSON file holds.

    Raises:
        UserError: no such file, or not a file of templates.
    """
    import yaml

    from mindspeed_llm.data.templates.slots import definitions_of_slots

    if not path.is_file():
        raise UserError(f"--prompt-type-path {path}: no such file.")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())[:200]
        raise UserError(f"--prompt-type-path {path}: neither YAML nor JSON ({words}).") from error
    if isinstance(content, list):
        return Definitions(definitions_of_slots(content, path), {})
    if not isinstance(content, dict):
        raise UserError(
            f"--prompt-type-path {path}: expected templates by name, or a list of templates with "
            "format_user, format_assistant, ...; docs/templates.md shows both."
        )
    by_name, refused = {}, {}
    for name, fields in content.items():
        if isinstance(fields, dict) and "refused" in fields:
            refused[name] = fields["refused"]
        else:
            by_name[name] = _definition(str(name), fields, path)
    return Definitions(by_name, refused)


def _definition(name: str, fields: Any, path: Path) -> Definition:
    where = f"{path}: template {name}"
    values = _checked(Definition, fields, where)
    if values.get("thinking") is not None:
        values["thinking"] = Thinking(
            **_checked(Thinking, values["thinking"], f"{where}, thinking")
        )
    for key in ("stop", "tokens"):
        values[key] = tuple(values.get(key, ()))
    definition = Definition(name, **values)
    check_definition(definition, where)
    return definition


def check_definition(definition: Definition, where: str) -> None:
    """Refuse what cannot be written.

    Raises:
        UserError: says what is wrong, after ``where``.
    """
    from mindspeed_llm.data.templates.tools import TOOL_FORMATS

    for key in ("system", "user", "assistant", "tool_result"):
        text = getattr(definition, key)
        if text is not None and text.count("{content}") != 1:
            raise UserError(f"{where}: {key} must hold {{content}} once, not {text!r}.")
    if definition.system_in_user not in ("", "apart", "joined"):
        raise UserError(f"{where}: system_in_user is apart or joined.")
    if definition.tools is not None and definition.tools not in TOOL_FORMATS:
        known = ", ".join(sorted(TOOL_FORMATS))
        raise UserError(f"{where}: tools is one of {known}, not {definition.tools!r}.")


def _checked(kind: type, fields: Any, where: str) -> dict[str, Any]:
    """``fields`` as arguments of a dataclass, each of the type of its default."""
    if not isinstance(fields, dict):
        raise UserError(f"{where}: expected fields, not {fields!r}.")
    known = {one.name: one for one in dataclasses.fields(kind) if one.name != "name"}
    for key, value in fields.items():
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
            hint = f" Did you mean {near[0]}?" if near else f" There is: {', '.join(known)}."
            raise UserError(f"{where}: no field {key!r}.{hint}")
        expected = str(known[key].type)
        wanted: type | tuple[type, ...] = str
        if expected.startswith("bool"):
            wanted = bool
        elif expected.startswith("tuple"):
            wanted = list
        elif expected.startswith(("dict", "Thinking")):
            wanted = dict
        if not isinstance(value, wanted) and not (value is None and "None" in expected):
            raise UserError(f"{where}: {key} is {value!r}, which is no {expected}.")
    return dict(fields)
