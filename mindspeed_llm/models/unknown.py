"""What to say about a model that no family file describes: what is missing, or the file to add."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mindspeed_llm.models import decoder
from mindspeed_llm.models.hf_config import IRRELEVANT

NOT_YET = {
    "bailing_mini": "its router and fused projections",
    "deepseek32": "sparse attention with an indexer",
    "deepseek4": "compressed attention and hyper-connections",
    "gemma": "a family file (Gemma 1)",
    "glm5": "sparse attention with an indexer",
    "gpt-oss": "attention sinks and biased experts",
    "longcat": "zero-computation experts and two attentions a layer",
    "mamba2": "state-space layers",
    "minimax_m2": "its router and norms of whole projections",
    "phi3.5-moe": "LayerNorm and the sparse-mixer router",
    "plm": "squared ReLU without a gate",
    "qwen3-next": "gated delta-rule layers",
}
"""Names that users of the field may give, and what keeps the family from being supported."""

_KEYS = {field.hf for field in decoder.CONFIG_FIELDS} | {
    "hidden_act",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
}

_SKELETON = '''\
"""{architecture}: what sets it apart from Llama."""

from mindspeed_llm.models import decoder
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.hf_config import ConfigMap, Field, Fixed

{constant} = Family(
    name="{name}",
    hf_model_type="{model_type}",
    hf_architecture="{architecture}",
    config=ConfigMap(
        fields=(*decoder.CONFIG_FIELDS,{head_dim}),
        fixed=(
            decoder.SILU,
{others}        ),
    ),
    weights=decoder.weight_map,
    layer_spec=decoder.layer_spec,
)
'''


def skeleton(config: Mapping[str, Any]) -> str:
    """A family file for a ``config.json`` of an unknown architecture, to be completed.

    Keys beyond those that every family has are listed with their values: each becomes a ``Field``
    (used), a ``Fixed`` (one value is implemented) or a constant, or the model is not this form.
    """
    architecture = (config.get("architectures") or ["?"])[0]
    model_type = str(config.get("model_type", "?"))
    others = sorted(set(config) - _KEYS - IRRELEVANT - {"head_dim", "layer_types"})
    return _SKELETON.format(
        architecture=architecture,
        model_type=model_type,
        name=model_type.replace("_", "-"),
        constant=re.sub(r"\W", "_", model_type).upper(),
        head_dim=" decoder.HEAD_DIM" if "head_dim" in config else "",
        others="".join(f"            Fixed({key!r}, ({config[key]!r},)),\n" for key in others),
    )
