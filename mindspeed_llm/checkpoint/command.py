"""The verb ``convert``: the flags are read first, so that ``--help`` and typos need no torch."""

from __future__ import annotations

from mindspeed_llm.console import say
from mindspeed_llm.flags import Config, parse


def main(argv: list[str]) -> None:
    """Convert as ``argv`` says."""
    run(parse("convert", argv, "mindspeed-llm convert"))


def run(config: Config) -> None:
    """Convert weights, or an adapter alone, as the flags say."""
    for line in config.inactive_flags("cpu"):
        say(f"without effect: {line}")
    if config.lora.save_lora_to_hf or config.lora.save_lora_to_mg:
        from mindspeed_llm.checkpoint.lora.command import convert_adapter

        convert_adapter(config.convert, config.lora)
        return
    from mindspeed_llm.checkpoint.convert import convert

    convert(config.convert, config.lora)
