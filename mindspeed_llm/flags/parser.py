"""The command line of a tool, derived from its flags: ``argv`` -> ``{dest: value}``.

As in Megatron: no abbreviations, the last of several values wins, ``--spec A B`` takes two words.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from mindspeed.errors import UserError
from mindspeed_llm.console import warn
from mindspeed_llm.flags.config import GROUPS, TOOLS, group_specs, tool_specs
from mindspeed_llm.flags.core import FlagSpec, comma_numbers
from mindspeed_llm.flags.status import Kind

DESCRIPTIONS = {
    "preprocess": "Turn raw text into a tokenized Megatron data set.",
    "convert": "Convert weights between Hugging Face and Megatron, at any parallel layout.",
    "convert_v1": "Convert weights: the older command line of the same conversion.",
    "pretrain": "Train a language model on Megatron-Core.",
    "posttrain": "Tune a language model: SFT on answers, DPO on preferences.",
    "inference": "Generate text from a checkpoint.",
}


class _Parser(argparse.ArgumentParser):
    """argparse that raises :class:`UserError` instead of printing its usage and exiting."""

    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", "takes no value, but has")
        raise UserError(message.removeprefix("argument "))


class _Deprecated(argparse.Action):
    """Stores like the flag it stands for, with a warning that names that flag."""

    def __init__(self, *args: Any, instead: str, **kwargs: Any) -> None:
        self.instead = instead
        super().__init__(*args, **kwargs)

    def __call__(self, parser, namespace, values, option_string=None) -> None:  # type: ignore[no-untyped-def]
        warn(f"{option_string} is an old name; write {self.instead}")
        setattr(namespace, self.dest, True if self.nargs == 0 else values)


def _reader(spec: FlagSpec) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return spec.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def default_text(spec: FlagSpec) -> str:
    """The default as it would be written; empty where there is none to speak of."""
    if spec.kind is bool or spec.default in (None, ()):
        return ""
    return spec.spelled(spec.default).removeprefix(spec.name).strip()


def _describe(spec: FlagSpec) -> str:
    default = default_text(spec)
    text = f"{spec.help} Default: {default}." if default else spec.help
    return text.replace("%", "%%")


def _metavar(spec: FlagSpec) -> str | tuple[str, ...]:
    if spec.nargs == 2:
        return ("MODULE", "NAME")
    if spec.choices:
        return "{" + ",".join(map(str, spec.choices)) + "}"
    return "N,N,..." if spec.convert is comma_numbers else spec.kind.__name__.upper()


def is_available(spec: FlagSpec, tool: str) -> bool:
    """Whether ``spec`` can take effect in ``tool`` (and so is worth a place in ``--help``)."""
    if spec.tools and tool not in spec.tools:
        return False
    if spec.effect.kind is Kind.PART_OF:
        known = tool_specs(tool)
        return any(
            parent in known and is_available(known[parent], tool) for parent in spec.effect.parents
        )
    return spec.effect.kind is not Kind.UNSUPPORTED


def _add(group: Any, spec: FlagSpec, shown: bool) -> None:
    common: dict[str, Any] = {"dest": spec.dest, "default": argparse.SUPPRESS}
    text = _describe(spec) if shown else argparse.SUPPRESS
    if spec.kind is bool:
        if spec.on:
            group.add_argument(*spec.on, action="store_true", help=text, **common)
        if spec.off:
            text = text if text is argparse.SUPPRESS else f"Off: {text}"
            group.add_argument(*spec.off, action="store_false", help=text, **common)
        takes: dict[str, Any] = {"nargs": 0}
    else:
        takes = {"nargs": spec.nargs, "type": _reader(spec)}
        takes["metavar"] = _metavar(spec)
        if spec.repeatable:
            takes["action"] = "extend"
        group.add_argument(*spec.on, help=text, **takes, **common)
    for name in spec.deprecated:
        group.add_argument(
            name,
            action=_Deprecated,
            instead=spec.name,
            help=argparse.SUPPRESS,
            **takes,
            **common,
        )


def build_parser(tool: str, prog: str | None = None) -> argparse.ArgumentParser:
    """The argparse parser of ``tool``; ``--help`` is grouped and leaves out what is inert there."""
    specs = tool_specs(tool).values()
    refused = [spec.name for spec in specs if spec.effect.kind is Kind.UNSUPPORTED]
    parser = _Parser(
        prog=prog,
        usage="%(prog)s [flags]",
        description=DESCRIPTIONS[tool],
        epilog=f"Known, but refused until their feature exists: {', '.join(refused)}.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="YAML file of flags; the command line wins over it.",
    )
    for name in TOOLS[tool]:
        section = parser.add_argument_group(GROUPS[name].title)
        for spec in group_specs(name):
            _add(section, spec, shown=is_available(spec, tool))
    return parser


def read_command_line(
    tool: str, argv: Sequence[str], prog: str | None = None
) -> tuple[dict[str, Any], str | None]:
    """Parse ``argv``.

    Returns:
        ``{dest: value}`` of the flags that are given, and the ``--config`` file or None.

    Raises:
        UserError: unknown flag, stray word, wrong type, value out of range.
    """
    namespace, rest = build_parser(tool, prog).parse_known_args(list(argv))
    if rest:
        raise UserError(_explain_rest(tool, rest))
    values = vars(namespace)
    config = values.pop("config", None)
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}, config


def all_spellings(tool: str) -> dict[str, FlagSpec]:
    """Every spelling that ``tool`` accepts."""
    return {name: spec for spec in tool_specs(tool).values() for name in spec.spellings}


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like ``name``."""
    return difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)


def _explain_rest(tool: str, rest: Sequence[str]) -> str:
    unknown = [word.split("=", 1)[0] for word in rest if word.startswith("-") and len(word) > 1]
    if unknown:
        return "\n".join(explain_unknown(tool, name) for name in dict.fromkeys(unknown))
    word = rest[0]
    if not word.strip():
        return "there is a blank after a line-ending backslash; remove it, or the rest is not read"
    if word[0] in "—–−":
        return f"{word!r} begins with a long dash instead of --"
    return f"{word!r} belongs to no flag: give it after the flag it is meant for"


def explain_unknown(tool: str, name: str) -> str:
    """One line on a flag that ``tool`` does not accept: who does, or what looks like it."""
    owners = [other for other in TOOLS if other != tool and name in all_spellings(other)]
    if owners:
        *most, last = owners
        listed = f"{', '.join(most)} and {last}" if most else last
        return f"{name} is a flag of {listed}, not of {tool}"
    near = closest(name, [*all_spellings(tool), "--config"])
    hint = f"did you mean {' or '.join(near)}?" if near else "--help lists all flags"
    return f"unknown flag {name}: {hint}"
