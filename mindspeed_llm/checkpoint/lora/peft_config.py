"""``adapter_config.json`` of the ``peft`` package: what is understood of it, what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.lora.adapter import pattern_value, scale_of

CONFIG = "adapter_config.json"

# Options that change what the adapter adds, or to which weights: value that asks for nothing ->
# what else they would need.
_PLAIN: dict[str, tuple[Any, str]] = {
    "use_dora": (False, "DoRA, which rescales the columns of the weight"),
    "bias": ("none", "trained biases"),
    "lora_bias": (False, "biases of the adapter's own"),
    "modules_to_save": (None, "whole modules that were trained beside the adapter"),
    "trainable_token_indices": (None, "trained rows of the embedding table"),
    "target_parameters": (None, "adapters of bare parameters"),
    "layer_replication": (None, "layers that are used several times"),
    "fan_in_fan_out": (False, "transposed weights"),
    "alora_invocation_tokens": (None, "aLoRA, which acts on part of the tokens"),
    "use_qalora": (False, "QA-LoRA, which pools the input"),
    "use_bdlora": (None, "block-diagonal LoRA"),
    "arrow_config": (None, "several adapters with a router"),
    "kasa_config": (None, "KaSA"),
    "velora_config": (None, "VeLoRA"),
    "monteclora_config": (None, "MonteCLoRA"),
}
# Ways to begin that also change the base weights, so that the adapter belongs to those.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Options of training, loading and record keeping: they change no merged weight.
_NEUTRAL = frozenset(
    """
    alpha_pattern auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config
    exclude_modules inference_mode init_lora_weights layers_pattern layers_to_transform
    loftq_config lora_alpha lora_dropout lora_ga_config megatron_config megatron_core peft_type
    peft_version qalora_group_size r rank_pattern revision runtime_config target_modules task_type
    use_rslora
    """.split()
)


@dataclass(frozen=True)
class PeftConfig:
    """The part of the file that decides about the weights."""

    rank: int
    alpha: float
    use_rslora: bool
    target_modules: tuple[str, ...] | str
    all_layers: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]

    def rank_of(self, module: str) -> int:
        """Rank of a module's pair."""
        return int(pattern_value(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Factor of a module's pair."""
        alpha = pattern_value(self.alpha_pattern, module, self.alpha)
        return scale_of(self.rank_of(module), alpha, self.use_rslora)


def read_config(folder: Path) -> PeftConfig:
    """Read ``folder/adapter_config.json``.

    Raises:
        UserError: if it is missing, damaged, or asks for anything but plain LoRA.
    """
    path = folder / CONFIG
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        kind = values["peft_type"]
        if kind != "LORA":
            raise UserError(f"{path}: this is a {kind} adapter; only LoRA can be converted")
        _refuse_variants(path, values)
        targets = values["target_modules"]
        return PeftConfig(
            rank=int(values["r"]),
            alpha=float(values["lora_alpha"]),
            use_rslora=bool(values.get("use_rslora")),
            target_modules=targets if isinstance(targets, str) else tuple(targets or ()),
            all_layers=not (values.get("layers_to_transform") or values.get("exclude_modules")),
            rank_pattern=values.get("rank_pattern") or {},
            alpha_pattern=values.get("alpha_pattern") or {},
        )
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a LoRA configuration of peft ({error!r})") from None


def _refuse_variants(path: Path, values: dict[str, Any]) -> None:
    lines = [
        f"{key}={values[key]!r}: {what}"
        for key, (plain, what) in _PLAIN.items()
        if (values.get(key, plain) or None) != (plain or None)
    ]
    begin = values.get("init_lora_weights")
    if isinstance(begin, str) and begin.lower().startswith(_CHANGES_BASE):
        lines.append(
            f"init_lora_weights={begin!r}: it changed the base weights too, so the adapter does "
            "not belong to the original ones (peft's save_pretrained with "
            "path_initial_model_for_weight_conversion makes it an ordinary one)"
        )
    lines += [
        f"{key}={value!r}: an option that is not known here"
        for key, value in values.items()
        if key not in _NEUTRAL and key not in _PLAIN and value
    ]
    if lines:
        raise UserError(
            f"{path} is refused, since its adapter is more than alpha/r · B·A:\n  "
            + "\n  ".join(lines)
            + "\npeft itself can merge it (merge_and_unload) before the conversion"
        )
