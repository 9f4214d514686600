"""The ``config.json`` of an export: the original's own, corrected only where it would be wrong."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import side_files
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.registry import family_of_hf_config, read_hf_config
from mindspeed_llm.models.shape import ModelShape

_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
# How far positions may go changes no weight and no logit, and training scripts set it freely.
_FREE = "max_position_embeddings"


def dtype_name(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``, as ``config.json`` spells it."""
    return str(dtype).removeprefix("torch.")


def exported_config(
    source: WeightSource,
    dtype: torch.dtype,
    origin: side_files.Origin,
    hf_cfg_dir: str | None,
) -> tuple[dict[str, Any], list[str]]:
    """The config, and lines on what was changed in it.

    It comes from ``hf_cfg_dir`` or from beside the checkpoint. Its type field changes only if
    the weights no longer have the type that the original's had.

    Raises:
        UserError: if ``hf_cfg_dir`` describes another model, with each difference.
    """
    name = dtype_name(dtype)
    folder = source.side_folder
    if folder is None:
        config = source.family.hf_config(source.shape, name)
        return config, ["config.json: written anew, since the checkpoint carries none"]
    config = read_hf_config(folder)
    family = family_of_hf_config(config, str(folder / side_files.CONFIG))
    different = _differences(source, family, family.config.to_shape(config))
    if different and hf_cfg_dir is not None:
        raise UserError(
            f"--hf-cfg-dir {hf_cfg_dir} describes another model than {source.path}:\n  "
            + "\n  ".join(different)
            + "\ngive the folder of the original model, or leave the flag out"
        )
    notes = [f"config.json: changed to the checkpoint's, {line}" for line in different]
    if different:
        config = _corrected(config, source.family, source.shape)
    stated = side_files.dtype_field(config)
    if name not in (stated, origin.weights_dtype):
        notes.append(f"config.json: type of the weights changed, {stated} -> {name}")
        config = side_files.with_dtype(config, name)
    return config, notes


def _differences(source: WeightSource, family: Family, stated: ModelShape) -> list[str]:
    lines = []
    if family is not source.family:
        lines.append(f"family: config.json {family.name}, checkpoint {source.family.name}")
    for field in fields(ModelShape):
        here, there = getattr(stated, field.name), getattr(source.shape, field.name)
        if here != there and field.name != _FREE:
            lines.append(f"{field.name}: config.json {here}, checkpoint {there}")
    return lines


def _corrected(config: dict[str, Any], family: Family, shape: ModelShape) -> dict[str, Any]:
    kept = {key: value for key, value in config.items() if key not in _ROPE_KEYS}
    stated = {key: config[key] for key in (_FREE,) if key in config}
    return {**kept, **family.config.to_hf(shape), **stated}


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds tokenizer files."""
    return any("token" in p.name or p.suffix == ".model" for p in side_files.listed(folder))
