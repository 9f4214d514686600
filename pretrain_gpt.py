"""Pretrain a GPT-style model: ``torchrun ... pretrain_gpt.py FLAGS``, or with ``--nproc N``."""

from mindspeed_llm.console import entry_point
from mindspeed_llm.training.pretrain import main

if __name__ == "__main__":
    entry_point(main)
