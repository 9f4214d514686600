"""Writes ``docs/flags.md`` from the declarations: ``python -m mindspeed_llm.flags.reference``."""

from __future__ import annotations

from pathlib import Path

from mindspeed_llm.flags.config import GROUPS, TOOLS, group_specs
from mindspeed_llm.flags.core import FlagSpec
from mindspeed_llm.flags.parser import default_text
from mindspeed_llm.flags.status import ALL_DEVICES, Kind

HEADING = """\
# Flags

Written by `python -m mindspeed_llm.flags.reference` from the declarations in
`mindspeed_llm/flags/`; do not edit.

Every flag is declared once. The same names work on the command line and in a YAML file
(`--config run.yaml`, with `-` or `_`, flat or in sections named as the groups below); the command
line wins. Names and defaults are Megatron's unless the text says otherwise; of several values of
one flag the last wins, and abbreviations are not accepted.

```yaml
# run.yaml: mindspeed-llm pretrain --config run.yaml --lr 2e-4
parallel:
  tensor_model_parallel_size: 2
  sequence_parallel: true
training: {seq_length: 1024, train_iters: 100, global_batch_size: 8}
lr: 1e-4
data_path: [0.7, english_text_document, 0.3, code_text_document]
```

The last column says what becomes of a flag that is given:

- *takes effect*;
- *speed only*: changes no number, and has no effect yet on the devices named, or at all; the
  start-up summary says so;
- *with --x*: means something only beside `--x`; alone it is reported as having no effect;
- **refused**: would change the model, the loss, the data, the optimizer or the parallel layout,
  and its feature does not exist yet.
"""


def _effect(spec: FlagSpec) -> str:
    effect = spec.effect
    if effect.kind is Kind.UNSUPPORTED:
        return f"**refused**: {effect.note}"
    if effect.kind is Kind.PART_OF:
        return f"with {' or '.join(f'--{name}' for name in effect.parents).replace('_', '-')}"
    if effect.kind is Kind.NEUTRAL and effect.devices != ALL_DEVICES:
        without = ", ".join(sorted(ALL_DEVICES - effect.devices))
        where = "" if not effect.devices else f" (not on {without})"
        return f"speed only{where}: {effect.note}"
    if spec.tools:
        return f"takes effect in {', '.join(sorted(spec.tools))}"
    return "takes effect"


def _row(spec: FlagSpec) -> str:
    names = "<br>".join(f"`{name}`" for name in spec.on + spec.off)
    if spec.deprecated:
        names += "<br>old: " + ", ".join(f"`{name}`" for name in spec.deprecated)
    values = ", ".join(f"`{choice}`" for choice in spec.choices)
    if not values and spec.kind is not bool:
        values = spec.kind.__name__ + {"*": " ...", "+": " ..."}.get(str(spec.nargs), "")
    cells = [names, values, default_text(spec), spec.help, _effect(spec)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def reference() -> str:
    """The text of ``docs/flags.md``."""
    parts = [HEADING]
    for group, owner in GROUPS.items():
        tools = [tool for tool, groups in TOOLS.items() if group in groups]
        parts.append(f"\n## {group}: {owner.title}\n\nAccepted by: {', '.join(tools)}.\n")
        parts.append("| flag | values | default | meaning | when given |\n|---|---|---|---|---|")
        parts.extend(_row(spec) for spec in group_specs(group))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    target = Path(__file__).parents[2] / "docs" / "flags.md"
    target.write_text(reference(), encoding="utf-8")
    print(f"wrote {target}")
