"""Tune a GPT-style model: ``torchrun ... posttrain_gpt.py --stage sft FLAGS``, or ``--nproc N``."""

from mindspeed_llm.console import entry_point
from mindspeed_llm.posttrain.command import main

if __name__ == "__main__":
    entry_point(main)
