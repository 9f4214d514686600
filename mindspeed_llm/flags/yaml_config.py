"""``--config run.yaml``: the same flags from a file.

Keys are dests or flag names, with ``-`` or ``_``. They may stand under the name of their group
(``model:``, ``parallel:`` ...), so that one file can serve several tools: a section of a group
that the tool does not have is checked and left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.console import warn
from mindspeed_llm.flags.config import GROUPS, TOOLS, group_specs
from mindspeed_llm.flags.core import FlagSpec
from mindspeed_llm.flags.parser import closest


@functools.cache
def _keys(*groups: str) -> dict[str, tuple[FlagSpec, bool]]:
    """Key -> its flag, and whether the key is a spelling that switches the flag off."""
    keys: dict[str, tuple[FlagSpec, bool]] = {}
    specs = [spec for group in groups for spec in group_specs(group)]
    for spec in specs:
        for name in spec.spellings:
            keys[name.lstrip("-").replace("-", "_")] = (spec, name in spec.off)
    for spec in specs:
        keys[spec.dest] = (spec, keys.get(spec.dest, (spec, False))[1])
    return keys


def read_yaml(tool: str, path: str) -> dict[str, Any]:
    """Read the flags of ``tool`` from a YAML file.

    Raises:
        UserError: unreadable file, broken YAML, unknown or repeated key, wrong value; with the
            line where there is one.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"--config {path}: cannot be read: {reason}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else path
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise UserError(f"{where}: not valid YAML: {problem}") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: expected 'flag: value' lines at the top level")
    return _Reader(tool, path).read(root)


class _Reader:
    """Walks the node tree of one file, which knows the line of every key."""

    def __init__(self, tool: str, path: str) -> None:
        self.tool = tool
        self.path = path

    def read(self, root: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, key, node in self._pairs(root):
            if name in GROUPS and hasattr(node, "value") and node.id == "mapping":
                section = self._section(name, node)
                if name in TOOLS[self.tool]:
                    values.update(section)
            else:
                self._set(values, _keys(*TOOLS[self.tool]), name, key, node)
        return values

    def _section(self, group: str, section: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, key, node in self._pairs(section):
            self._set(values, _keys(group), name, key, node)
        return values

    def _pairs(self, mapping: Any) -> Iterator[tuple[str, Any, Any]]:
        seen: dict[str, int] = {}
        for key, node in mapping.value:
            if key.id != "scalar":
                raise self._error(key, "a key must be a flag's name")
            name = key.value.lstrip("-").replace("-", "_")
            if name in seen:
                raise self._error(key, f"{key.value} stands already in line {seen[name]}")
            seen[name] = key.start_mark.line + 1
            yield name, key, node

    def _set(
        self,
        values: dict[str, Any],
        known: Mapping[str, tuple[FlagSpec, bool]],
        name: str,
        key: Any,
        node: Any,
    ) -> None:
        if name not in known:
            raise self._error(key, self._unknown(key.value, name, known))
        spec, off = known[name]
        if "--" + name.replace("_", "-") in spec.deprecated:
            warn(f"{self.path}: {key.value} is an old name; write {spec.name.lstrip('-')}")
        if node.tag == "tag:yaml.org,2002:null":
            return
        try:
            value = self._value(spec, node)
        except ValueError as error:
            raise self._error(node, f"{key.value}: {error}") from None
        value = not value if off else value
        if spec.dest in values and values[spec.dest] != value:
            raise self._error(key, f"{key.value} contradicts another line about {spec.name}")
        values[spec.dest] = value

    @staticmethod
    def _value(spec: FlagSpec, node: Any) -> Any:
        if node.id == "mapping" or any(item.id != "scalar" for item in _items(node)):
            raise ValueError("expected a value or a list of values")
        if spec.nargs is None:
            if node.id == "sequence" and not spec.convert:
                raise ValueError("takes one value, not a list")
            return spec.read(",".join(item.value for item in _items(node)))
        words = [item.value for item in _items(node)]
        if node.id == "scalar":
            words = node.value.split()
        if isinstance(spec.nargs, int) and len(words) != spec.nargs:
            raise ValueError(f"takes {spec.nargs} values")
        if spec.nargs == "+" and not words:
            raise ValueError("takes at least one value")
        return tuple(spec.read(word) for word in words)

    def _unknown(self, written: str, name: str, known: Mapping[str, Any]) -> str:
        here = _keys(*TOOLS[self.tool])
        if name in here:
            return f"{written} belongs to the section {here[name][0].group}:"
        owners = [tool for tool in TOOLS if name in _keys(*TOOLS[tool])]
        if owners:
            return (
                f"{written} is a flag of {' and '.join(owners)}, not of {self.tool}; put flags of "
                "several tools into sections (model:, preprocess:, ...)"
            )
        near = closest(name, known)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        return f"unknown flag {written}{hint}"

    def _error(self, node: Any, message: str) -> UserError:
        return UserError(f"{self.path}:{node.start_mark.line + 1}: {message}")


def _items(node: Any) -> list[Any]:
    return node.value if node.id == "sequence" else [node]
