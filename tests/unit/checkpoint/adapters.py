"""Random adapters made by ``peft`` itself, and what ``peft`` makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SEPARATE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TARGETS: dict[str, list[str]] = {
    "glm4_9b": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
    "phi3.5": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
}


def base_model(folder: Path) -> Any:
    """The base model in ``transformers``."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def make(base: Path, folder: Path, targets: Any = None, rank: int = 6, **config: Any) -> Path:
    """An adapter with random A and B for ``base``, saved by ``peft``."""
    from peft import LoraConfig, get_peft_model

    config = {"lora_alpha": 11, "task_type": "CAUSAL_LM", **config}
    settings = LoraConfig(r=rank, target_modules=targets or SEPARATE, **config)
    model = get_peft_model(base_model(base), settings)
    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return folder


def merged_by_peft(base: Path, adapter: Path) -> dict[str, Tensor]:
    """The weights that ``peft`` merges."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(base_model(base), adapter).merge_and_unload()
    return dict(model.state_dict())


def logits(base: Path, adapter: Path | None, ids: Tensor) -> Tensor:
    """Logits of the base model, with the adapter beside it if there is one."""
    from peft import PeftModel

    model = base_model(base)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        return model(ids).logits


def deltas(folder: Path) -> dict[str, Tensor]:
    """Module -> what an adapter folder adds to its weight, in fp64, read without our code."""
    import json
    import re

    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    found = {}
    for name, a in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")

        def of(pattern: str, default: float, module: str = module) -> float:
            keys = [k for k in config[pattern] if re.match(rf"(.*\.)?({k})$", module)]
            return config[pattern][keys[0]] if keys else default

        rank, alpha = of("rank_pattern", config["r"]), of("alpha_pattern", config["lora_alpha"])
        assert a.shape[0] == rank, name
        scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
        b = tensors[name.replace("lora_A", "lora_B")]
        found[module] = scale * b.double() @ a.double()
    return found


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal but for the last bit of fp32 (the order of one multiplication and addition)."""
    for name, tensor in found.items():
        torch.testing.assert_close(
            tensor, expected[name], rtol=1.2e-7, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )
