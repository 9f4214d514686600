"""A flag that claims to take effect is read somewhere outside the flags themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mindspeed_llm.flags.config import GROUPS, group_specs
from mindspeed_llm.flags.core import FlagSpec
from mindspeed_llm.flags.status import Kind

ROOT = Path(__file__).parents[3]
SETTLED = {
    "recompute_activations": "sets recompute_granularity",
    "enable_hf2mg_convert": "--load finds out by itself; the check that --load is there remains",
    "use_checkpoint_opt_param_scheduler": "the checkpoint's schedule is used unless overridden",
}
"""Flags that act inside the flags package: through another flag, or as a check."""


def sources() -> str:
    own = ROOT / "mindspeed_llm" / "flags"
    files = [*(ROOT / "mindspeed_llm").rglob("*.py"), *(ROOT / "mindspeed").rglob("*.py")]
    return "\n".join(path.read_text("utf-8") for path in files if own not in path.parents)


def has_a_choice(spec: FlagSpec) -> bool:
    """Whether more than one value is accepted."""
    allowed = spec.choices or ((False, True) if spec.kind is bool else (None, None))
    return len([value for value in allowed if value not in spec.refused]) > 1


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_active_flags_are_read(group):
    text = sources()
    unread = [
        spec.name
        for spec in group_specs(group)
        if spec.effect.kind is Kind.ACTIVE
        and spec.dest not in SETTLED
        and has_a_choice(spec)
        and not re.search(rf"""\.{spec.dest}\b|["']({spec.dest}|{spec.name})["']""", text)
    ]
    assert not unread, f"declared as taking effect, but nothing reads them: {unread}"
