"""The command ``convert`` (``convert_ckpt_v2.py``): weights between Hugging Face and Megatron.

The work is in ``conversion.py``, imported only once the flags are read: ``--help`` needs no torch.
"""

from __future__ import annotations


def main(argv: list[str]) -> None:
    """Read the flags and convert; see :func:`mindspeed_llm.checkpoint.conversion.convert`."""
    from mindspeed_llm.flags import parse

    flags = parse("convert", argv).convert

    from mindspeed_llm.checkpoint.conversion import convert

    convert(flags)
