"""Writing an adapter folder that the ``peft`` package loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mindspeed_llm.checkpoint.lora.adapter import (
    Adapter,
    LowRank,
    Patterns,
    adaptable,
    last_word,
    module_of,
)
from mindspeed_llm.checkpoint.lora.fuse import unfuse
from mindspeed_llm.checkpoint.lora.peft_config import CONFIG
from mindspeed_llm.checkpoint.lora.peft_folder import PREFIX, SAFETENSORS
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.shape import ModelShape


def write_peft(
    adapter: Adapter, family: Family, shape: ModelShape, folder: Path, base: str | None
) -> tuple[int, int]:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` into ``folder``.

    Args:
        base: name or folder of the base model, as ``peft`` looks it up; None if unknown.

    Returns:
        Number of tensors and their bytes.
    """
    from safetensors.torch import save_file

    pairs: dict[str, LowRank] = {}
    entries = adaptable(family, shape)
    for name, entry in entries.items():
        if name in adapter.names:
            parts = unfuse(entry, shape, adapter.pair(entry), adapter.settings.rank)
            pairs |= {module_of(hf): part for hf, part in parts.items()}
    tensors = {}
    for module, pair in pairs.items():
        # Copies: projections may share one A, and safetensors stores no shared memory.
        tensors[f"{PREFIX}{module}.lora_A.weight"] = pair.a.clone().contiguous()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = pair.b.clone().contiguous()
    save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
    linear = [module_of(hf) for entry in entries.values() for hf in entry.hf]
    config = _config(adapter, pairs, linear, base)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return len(tensors), sum(tensor.nbytes for tensor in tensors.values())


def _config(
    adapter: Adapter, pairs: dict[str, LowRank], linear: list[str], base: str | None
) -> dict[str, Any]:
    settings = adapter.settings
    patterns = Patterns(settings)
    for module, pair in pairs.items():
        patterns.add(module, pair)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": settings.rank,
        "lora_alpha": _number(settings.alpha),
        "use_rslora": settings.use_rslora,
        "rank_pattern": patterns.rank_pattern(),
        "alpha_pattern": {key: _number(a) for key, a in patterns.alpha_pattern().items()},
        "target_modules": _target_modules(set(pairs), linear),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
    }


def _target_modules(adapted: set[str], linear: list[str]) -> list[str]:
    """Last words of names where they mean exactly the adapted modules, full names elsewhere."""
    others = {last_word(module) for module in linear if module not in adapted}
    words = {last_word(module) for module in adapted}
    if words & others:
        return sorted(adapted)
    return sorted(words)


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value
