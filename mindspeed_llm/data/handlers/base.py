"""What every handler is: a class that says which columns it reads and makes samples of records."""

from __future__ import annotations

import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from mindspeed.errors import UserError
from mindspeed_llm.data.conversation import Conversation, Message, Pair
from mindspeed_llm.data.handlers.faults import Malformed
from mindspeed_llm.data.handlers.roles import ordered
from mindspeed_llm.data.readers import Fields
from mindspeed_llm.data.readers.records import json_kind
from mindspeed_llm.data.storage.manifest import Kind


class Handler(ABC):
    """Makes samples of records.

    Attributes:
        kind: what the samples are for.
        defaults: the names that ``--map-keys`` may give, each with the column read for it if it
            does not; "" for none.
        required: those of the names whose column every record must have.
        prompt_type: the template where ``--prompt-type`` names none; None: it must.
        cut_turns: conversations so far of which turns without an answer were cut off.
    """

    kind: ClassVar[Kind] = "instruction"
    defaults: ClassVar[Mapping[str, str]] = {}
    required: ClassVar[Sequence[str]] = ()
    prompt_type: ClassVar[str | None] = None

    def __init__(self, map_keys: str | None = None, additional: Sequence[str] = ()) -> None:
        self.given = parse_map_keys(map_keys, self.defaults, type(self).__name__)
        self.columns = {**self.defaults, **self.given}
        self.additional = tuple(additional)
        self.cut_turns = 0
        for name in self.required:
            if not self.columns[name]:
                raise UserError(f'--map-keys: "{name}" of {type(self).__name__} needs a column.')

    @property
    def fields(self) -> Fields:
        """The columns to read; only required ones must be there."""
        needed = dict.fromkeys([self.columns[name] for name in self.required])
        others = dict.fromkeys(column for column in self.columns.values() if column)
        names = tuple(dict.fromkeys([*needed, *self.additional, *others]))
        optional = frozenset(names) - frozenset(needed) - frozenset(self.additional)
        return Fields(names, optional, text=False, flag="--map-keys")

    def value(self, record: Mapping[str, Any], name: str) -> Any:
        """What the record holds for a name; None if there is no column or value."""
        column = self.columns[name]
        return record.get(column) if column else None

    def text(self, record: Mapping[str, Any], name: str) -> str:
        """The same, which must be a text; "" for null or none."""
        return as_text(self.value(record, name), self.columns[name])

    def extra(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The further columns to carry along."""
        return {name: record.get(name) for name in self.additional}

    def answered(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Turns in order, up to the last answer (:mod:`mindspeed_llm.data.handlers.roles`).

        Raises:
            OddShape: the order is none that can be trained on.
        """
        turns, cut = ordered(messages)
        self.cut_turns += cut > 0
        return turns

    @abstractmethod
    def sample(self, record: Mapping[str, Any]) -> Conversation | Pair:
        """What becomes of a record: its values by column, None for a null or missing one.

        Raises:
            Malformed: it is not of the schema.
            OddShape: nothing can be trained on it.
        """


def parse_map_keys(text: str | None, defaults: Mapping[str, Any], handler: str) -> dict[str, Any]:
    """Read ``--map-keys``.

    Raises:
        UserError: no JSON object, an unknown name (with those near it), a column that is no text.
    """
    if text is None:
        return {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UserError(f"--map-keys {text}: not JSON ({error}).") from error
    if not isinstance(given, dict):
        raise UserError(f"--map-keys {text}: {json_kind(given)}, not an object.")
    return check_names(given, defaults, f"--map-keys for {handler}")


def check_names(
    given: Mapping[str, Any], defaults: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Check that every name is known and every value is of the default's kind; null is ""."""
    checked = {}
    for name, value in given.items():
        if name not in defaults:
            near = difflib.get_close_matches(name, defaults, n=3, cutoff=0.4)
            raise UserError(f'{where}: no name "{name}"; there is {", ".join(near or defaults)}.')
        value = "" if value is None else value
        if not isinstance(value, type(defaults[name])):
            raise UserError(f'{where}: "{name}" is {json_kind(value)}.')
        checked[name] = value
    return checked


def as_text(value: Any, where: str) -> str:
    """A text, or "" for null.

    Raises:
        Malformed: anything else.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise Malformed(f'the value of "{where}" is {json_kind(value)}, not a string')


def as_list(value: Any, where: str) -> list[Any]:
    """A list, also one written as a JSON text; [] for null or an empty text.

    Raises:
        Malformed: anything else.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = orjson.loads(value)
        except ValueError:
            raise Malformed(f'the value of "{where}" is a text that holds no JSON list') from None
    if not value and not isinstance(value, (dict, int)):
        return []
    if not isinstance(value, list):
        raise Malformed(f'the value of "{where}" is {json_kind(value)}, not a list')
    return value


def as_tools(value: Any, where: str) -> tuple[dict[str, Any], ...]:
    """The schemas of functions: a list of objects, often written as a JSON text.

    Raises:
        Malformed: anything else.
    """
    tools = as_list(value, where)
    for tool in tools:
        if not isinstance(tool, dict):
            raise Malformed(f'"{where}" holds {json_kind(tool)} where a function is described')
    return tuple(without_nulls(tool) for tool in tools)


def without_nulls(value: Any) -> Any:
    """A value without the nulls by which columnar files fill up the keys of other rows."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
