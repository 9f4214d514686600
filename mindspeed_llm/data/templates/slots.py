"""Templates as lists of slots, the form that LLaMA-Factory and suites after it store them in.

Each of ``format_user``, ``format_assistant``, ... holds ``{"slots": [...]}``; a slot is a text
(with ``{{content}}``), ``{"token": text}``, ``["bos_token"]`` or ``["eos_token"]``. The user's
slots hold the opening of the assistant's turn too.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.data.templates.definition import Definition, Thinking, check_definition

FORMATS = ("user", "assistant", "system", "function", "observation", "tools", "separator", "prefix")
FIELDS = (
    "name",
    *(f"format_{part}" for part in FORMATS),
    *("default_system", "stop_words", "efficient_eos", "replace_eos", "force_system"),
    *("thought_words", "template_class"),
)
CLASSES = ("Template", "LFDefaultTemplate", "ReasoningTemplate", "Llama2Template")
TOOLS = {"qwen": "qwen3", "glm4": "glm4", "glm4_moe": "glm4_moe"}


def definitions_of_slots(entries: list[Any], path: Path) -> dict[str, Definition]:
    """The templates of such a file, by name.

    Raises:
        UserError: an entry that cannot be written; says which and why.
    """
    found = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UserError(f"{path}: entry {index + 1} is no template with a name.")
        found[entry["name"]] = _definition(entry, f"{path}: template {entry['name']}")
    return found


def _definition(entry: dict[str, Any], where: str) -> Definition:
    for key in entry:
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=1)
            raise UserError(
                f"{where}: no field {key!r}.{f' Did you mean {near[0]}?' if near else ''}"
            )
    kind = entry.get("template_class") or "Template"
    if kind not in CLASSES:
        raise UserError(f"{where}: template_class is one of {', '.join(CLASSES)}, not {kind!r}.")
    tokens: list[str] = []

    def text(part: str, default: str | None) -> str | None:
        slots = (entry.get(f"format_{part}") or {}).get("slots")
        return default if slots is None else _text(slots, tokens, f"{where}, format_{part}")

    stop = list(entry.get("stop_words") or ())
    user, result = text("user", "{content}") or "", text("observation", None)
    efficient = bool(entry.get("efficient_eos"))
    assistant = text("assistant", "{content}" if efficient else "{content}{eos}") or ""
    own, end, closing = _split_end(assistant, stop)
    following = {
        role: mark
        for role, written in (("user", user), ("tool", result or ""))
        for mark in stop
        if efficient and written.startswith(mark)
    }
    tools = (entry.get("format_tools") or {}).get("tool_format")
    definition = Definition(
        name=entry["name"],
        prefix=text("prefix", "") or "",
        system=text("system", "{content}"),
        default_system=entry.get("default_system") or ("" if entry.get("force_system") else None),
        system_in_user="joined" if kind == "Llama2Template" else "",
        user=user,
        assistant=own,
        end=end,
        last_end="{eos}" if efficient and not end and not following else "",
        next=following,
        closing=closing,
        between=text("separator", "") or "",
        tool_result=result,
        tools=TOOLS.get(tools) if tools else None,
        thinking=_thinking(entry) if kind == "ReasoningTemplate" else None,
        eos=stop[0] if entry.get("replace_eos") and stop else None,
        # Without a turn's own opening, every answer must stand behind what opens it.
        alternate=True,
        stop=("{eos}",) if following else (),
        tokens=tuple(tokens),
    )
    check_definition(definition, where)
    return definition


def _text(slots: list[Any], tokens: list[str], where: str) -> str:
    """Slots as one text; what must be a single token is added to ``tokens``."""
    text = ""
    for slot in slots:
        if isinstance(slot, str):
            text += slot.replace("{{content}}", "{content}").replace("{{idx}}", "{round}")
        elif isinstance(slot, dict) and isinstance(slot.get("token"), str):
            text += slot["token"]
            tokens.append(slot["token"])
        elif slot in (["bos_token"], ["eos_token"]):
            text += "{bos}" if slot == ["bos_token"] else "{eos}"
        else:
            raise UserError(f"{where}: {slot!r} is no slot.")
    return text


def _split_end(assistant: str, stop: list[str]) -> tuple[str, str, str]:
    """The answer itself, the token that ends it, and what follows that."""
    behind = assistant.find("{content}") + len("{content}")
    marks = [(assistant.find(mark, behind), mark) for mark in ("{eos}", *stop)]
    marks = [(place, mark) for place, mark in marks if place >= 0]
    if not marks:
        return assistant, "", ""
    place, mark = min(marks)
    return assistant[:place], mark, assistant[place + len(mark) :]


def _thinking(entry: dict[str, Any]) -> Thinking:
    opened, closed = entry.get("thought_words") or ("<think>\n", "\n</think>\n\n")
    # Such templates keep the thinking of every answer, and give empty marks to every other.
    return Thinking(opened, closed, empty="all", keep=True)
