"""Command-line flags: every one declared once, as a typed dataclass field.

``parse(tool, argv)`` turns a command line (and a ``--config`` YAML file) into one frozen
:class:`Config`; ``validate(config, world_size)`` checks what needs the number of processes or
the final model shape, and returns what follows from both.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspeed_llm.flags.config import TOOLS, Config
from mindspeed_llm.flags.parser import read_command_line
from mindspeed_llm.flags.refuse import refuse_missing_features
from mindspeed_llm.flags.validate import Derived, check_flags, validate
from mindspeed_llm.flags.yaml_config import read_yaml

__all__ = ["TOOLS", "Config", "Derived", "parse", "validate"]


def parse(tool: str, argv: Sequence[str], prog: str | None = None) -> Config:
    """Read the command line of ``tool``.

    Args:
        tool: ``preprocess``, ``convert``, ``pretrain``, ``posttrain`` or ``inference``.
        argv: the words after the program's name.
        prog: the program's name in ``--help``.

    Raises:
        UserError: unknown flag, wrong value, missing feature, flags that exclude each other.
    """
    values, config_file = read_command_line(tool, argv, prog)
    if config_file is not None:
        values = {**read_yaml(tool, config_file), **values}
    config = Config.from_values(tool, values)
    refuse_missing_features(config)
    return check_flags(config)
