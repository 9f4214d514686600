"""Lets Megatron's latent attention be built without TransformerEngine, on every device."""

from __future__ import annotations

import importlib.util
from typing import Any

from mindspeed.features.base import Feature, Level
from mindspeed.patching import SymbolPatch


def _is_installed(original: Any) -> bool:
    return bool(original) and importlib.util.find_spec("transformer_engine") is not None


FEATURE = Feature(
    "latent-attention",
    Level.REQUIRED,
    patches=(
        SymbolPatch(
            "latent-attention.have-te",
            "Megatron takes TransformerEngine's names, all None, for TransformerEngine itself",
            "megatron.core.transformer.multi_latent_attention:HAVE_TE",
            _is_installed,
        ),
    ),
)
