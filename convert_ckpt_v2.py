"""Convert weights between Hugging Face and Megatron: ``python convert_ckpt_v2.py --help``."""

from mindspeed_llm.checkpoint.command import main
from mindspeed_llm.console import entry_point

if __name__ == "__main__":
    entry_point(main)
