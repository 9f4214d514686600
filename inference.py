"""Generate text: ``torchrun ... inference.py FLAGS``, or with ``--nproc N``."""

from mindspeed_llm.console import entry_point
from mindspeed_llm.inference.generate import main

if __name__ == "__main__":
    entry_point(main)
