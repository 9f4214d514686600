"""``convert_ckpt.py``: the older command line, translated into the flags of the conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.command import run
from mindspeed_llm.console import say
from mindspeed_llm.flags import Config, parse

EXPORT_FOLDER = "mg2hf"
"""Where the older tool put an export, within the original model's folder."""

_LOADERS = {"hf": "hf", "mg": "mg", "megatron": "mg"}


def main(argv: list[str]) -> None:
    """Convert as ``argv`` says."""
    run(translate(parse("convert_v1", argv, "convert_ckpt.py")))


def translate(config: Config) -> Config:
    """The same request in the flags of ``convert_ckpt_v2.py``.

    Raises:
        UserError: if older and newer names of one thing contradict each other.
    """
    changes: dict[str, Any] = {
        **_kinds(config),
        **_family(config),
        **_expert_parallel(config),
    }
    config = config.replace(**changes)
    return config.replace(**_export_place(config))


def _kinds(config: Config) -> dict[str, str]:
    """``--loader`` and ``--saver`` as ``--load-model-type`` and ``--save-model-type``."""
    flags, changes = config.convert_v1, {}
    if flags.loader is not None:
        kind = _kind("--loader", flags.loader, "--load-model-type")
        given = config.convert.load_model_type
        if "load_model_type" in config.given and given != kind:
            raise UserError(
                f"--loader {flags.loader} reads {kind} and --load-model-type is {given}; leave one "
                "of them out"
            )
        changes["load_model_type"] = kind
    if flags.saver is not None:
        # The older tool's Megatron saver wrote Hugging Face too, if --save-model-type said so.
        kind = _kind("--saver", flags.saver, "--save-model-type")
        if "save_model_type" not in config.given:
            changes["save_model_type"] = kind
    return changes


def _kind(name: str, value: str, instead: str) -> str:
    for word in value.lower().split("_"):
        if word in _LOADERS:
            return _LOADERS[word]
    raise UserError(f"{name} {value} is unknown; give the kind, hf or mg, with {instead}")


def _family(config: Config) -> dict[str, str]:
    """The older tool converted Qwen2 and Qwen2.5 as "llama2 with biases"."""
    if config.convert.model_type_hf == "llama2" and config.convert.add_qkv_bias:
        return {"model_type_hf": "qwen2"}
    return {}


def _expert_parallel(config: Config) -> dict[str, int]:
    size = config.convert_v1.target_expert_model_parallel_size
    if size is None:
        return {}
    other = config.convert.target_expert_parallel_size
    if "target_expert_parallel_size" in config.given and other != size:
        raise UserError(
            f"--target-expert-model-parallel-size {size} and --target-expert-parallel-size {other} "
            "are one thing; give one of them"
        )
    return {"target_expert_parallel_size": size}


def _export_place(config: Config) -> dict[str, str]:
    """An export goes into ``mg2hf`` of the original model's folder, which ``--save-dir`` names."""
    flags = config.convert
    if flags.save_dir is None or (flags.load_model_type, flags.save_model_type) != ("mg", "hf"):
        return {}
    original = Path(flags.save_dir)
    if flags.hf_cfg_dir is not None or not (original / "config.json").is_file():
        return {}
    say(f"--save-dir {original} holds the original model: writing into its folder {EXPORT_FOLDER}")
    return {"hf_cfg_dir": str(original), "save_dir": str(original / EXPORT_FOLDER)}
