"""The older command line of weight conversion: ``python convert_ckpt.py --help``."""

from mindspeed_llm.checkpoint.command_v1 import main
from mindspeed_llm.console import entry_point

if __name__ == "__main__":
    entry_point(main)
