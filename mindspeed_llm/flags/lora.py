"""Flags on LoRA adapters in conversion."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import Group, flag


@dataclass(frozen=True)
class LoraFlags(Group):
    title = "LoRA adapter"

    lora_load: str | None = flag(
        None, "Adapter to merge into the weights: a PEFT folder or a Megatron checkpoint."
    )
    lora_r: int | None = flag(
        None, "Rank; read from the adapter, an error where it differs.", at_least=1
    )
    lora_alpha: float | None = flag(
        None, "Scale times rank; read from the adapter, an error where it differs.", above=0
    )
    lora_target_modules: tuple[str, ...] = flag(
        (),
        "Megatron's names of the adapted layers; read from the adapter, an error where they "
        "differ.",
        nargs="+",
    )
    save_lora_to_hf: bool = flag(
        False, "Write the adapter alone, as a PEFT folder; --load-dir is its base or itself."
    )
    save_lora_to_mg: bool = flag(
        False, "Write the adapter alone, as a Megatron checkpoint at the target layout."
    )


NO_ADAPTER = LoraFlags()
