"""The verb ``convert``: the flags are read first, so that ``--help`` and typos need no torch."""

from __future__ import annotations

from mindspeed_llm.flags import parse


def main(argv: list[str]) -> None:
    """Convert as ``argv`` says."""
    flags = parse("convert", argv, "mindspeed-llm convert").convert
    from mindspeed_llm.checkpoint.convert import convert

    convert(flags)
