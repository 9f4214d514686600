"""Finding a family: by ``--model-type-hf``, by ``config.json``, or by the shape alone.

Adding a family is a file beside this one and a line in ``FAMILIES``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.files import strict_json
from mindspeed_llm.models.deepseek2 import DEEPSEEK2
from mindspeed_llm.models.deepseek3 import DEEPSEEK3
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.gemma2 import GEMMA2
from mindspeed_llm.models.glm4 import GLM4
from mindspeed_llm.models.glm45 import GLM45
from mindspeed_llm.models.llama import LLAMA
from mindspeed_llm.models.mistral import MISTRAL
from mindspeed_llm.models.mixtral import MIXTRAL
from mindspeed_llm.models.phi3 import PHI3
from mindspeed_llm.models.qwen2 import QWEN2
from mindspeed_llm.models.qwen2_moe import QWEN2_MOE
from mindspeed_llm.models.qwen3 import QWEN3
from mindspeed_llm.models.qwen3_moe import QWEN3_MOE
from mindspeed_llm.models.seed_oss import SEED_OSS
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.unknown import NOT_YET, skeleton

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    QWEN2,
    QWEN3,
    MISTRAL,
    SEED_OSS,
    PHI3,
    GLM4,
    GEMMA2,
    QWEN3_MOE,
    QWEN2_MOE,
    MIXTRAL,
    DEEPSEEK2,
    DEEPSEEK3,
    GLM45,
)


def names() -> list[str]:
    """Every accepted value of ``--model-type-hf``."""
    return sorted(name for family in FAMILIES for name in (family.name, *family.aliases))


def get_family(name: str) -> Family:
    """The family of a ``--model-type-hf`` value.

    Raises:
        UserError: for a name without a family file, with the nearest known ones.
    """
    for family in FAMILIES:
        if name in (family.name, *family.aliases):
            return family
    known = names()
    if name in NOT_YET:
        raise UserError(
            f"--model-type-hf {name} is not supported yet; missing: {NOT_YET[name]}. "
            f"Supported: {', '.join(known)}"
        )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UserError(f"--model-type-hf {name} is unknown; {hint}supported: {', '.join(known)}")


def family_of_hf_config(config: Mapping[str, Any], where: str = "config.json") -> Family:
    """The family that a parsed ``config.json`` belongs to.

    Raises:
        UserError: for an architecture without a family file, saying which file to add.
    """
    architectures = config.get("architectures") or []
    model_type = config.get("model_type")
    for family in FAMILIES:
        if family.hf_architecture in architectures:
            return family
    for family in FAMILIES:
        if not architectures and family.hf_model_type == model_type:
            return family
    found = architectures[0] if architectures else model_type
    if found is None:
        raise UserError(
            f"{where} has neither architectures nor model_type, so its family is unknown; "
            "add the line of the original model, or give --model-type-hf"
        )
    raise UserError(
        f"{where}: no family for {found}. Supported architectures: "
        f"{', '.join(family.hf_architecture for family in FAMILIES)}.\n"
        "If it has their parts, it is one file in mindspeed_llm/models/, listed in registry.py. A "
        f"beginning, with this model's own settings:\n\n{skeleton(config)}"
    )


def family_of_shape(shape: ModelShape) -> Family:
    """The family whose structure a shape has, when no name and no ``config.json`` is given."""
    if shape.experts is not None:
        if shape.experts.moe_router_score_function == "sigmoid":
            return GLM45 if shape.latent is None else DEEPSEEK3
        if shape.latent is not None:
            return DEEPSEEK2
        if shape.qk_layernorm:
            return QWEN3_MOE
        return QWEN2_MOE if shape.experts.shared_expert_gate else MIXTRAL
    if shape.post_norm:
        return GLM4 if shape.use_glm_rope else GEMMA2
    if shape.qk_layernorm:
        return QWEN3
    return QWEN2 if shape.add_qkv_bias else LLAMA


def read_hf_config(folder: Path | str) -> dict[str, Any]:
    """Parse ``folder/config.json``.

    Raises:
        UserError: if it is missing or not JSON.
    """
    path = Path(folder) / "config.json"
    try:
        config = strict_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; a Hugging Face model folder has a config.json"
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); download it again") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object; download it again")
    return config
