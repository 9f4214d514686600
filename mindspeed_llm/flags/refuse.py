"""Refuse by name what would silently change a run because its feature does not exist yet."""

from __future__ import annotations

from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.flags.config import Config, tool_specs
from mindspeed_llm.flags.core import FlagSpec
from mindspeed_llm.flags.status import Kind


def missing_feature(spec: FlagSpec, value: Any) -> str | None:
    """The missing feature that ``spec`` set to ``value`` needs; None when it needs none."""
    if value == spec.default:
        return None
    if spec.effect.kind is Kind.UNSUPPORTED and value not in spec.effect.harmless:
        return spec.effect.note
    for item in value if isinstance(value, tuple) else (value,):
        if item in spec.refused:
            return spec.refused[item]
    return None


def refuse_missing_features(config: Config) -> None:
    """Raise one :class:`UserError` that lists every given flag whose feature is missing."""
    lines = []
    for dest, spec in tool_specs(config.tool).items():
        if dest not in config.given or (spec.tools and config.tool not in spec.tools):
            continue
        feature = missing_feature(spec, config.value(dest))
        if feature:
            lines.append(f"{spec.spelled(config.value(dest))} needs {feature}")
    if lines:
        raise UserError("not available in this version:\n  " + "\n  ".join(lines))
