"""What can be wrong with a record."""

from __future__ import annotations


class Malformed(ValueError):
    """A record that is not of the handler's schema: stops the run, or is skipped and counted."""


class OddShape(ValueError):
    """A record of the schema that no conversation follows from; left out and counted.

    Attributes:
        rule: the name under which it is counted (``docs/preprocess.md`` lists them).
    """

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule
