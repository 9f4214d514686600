"""What a model family declares. A family file holds one ``Family`` and little else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mindspeed_llm.models.hf_config import ConfigMap
from mindspeed_llm.models.mapping import WeightMap
from mindspeed_llm.models.shape import ModelShape

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig


@dataclass(frozen=True)
class Family:
    """A family of models that share a structure.

    Attributes:
        name: canonical value of ``--model-type-hf``.
        aliases: other accepted values.
        hf_model_type: ``model_type`` in ``config.json``.
        hf_architecture: the ``architectures`` entry.
        config: ``config.json`` to shape and back.
        weights: the weight map of a shape.
        layer_spec: Megatron's module spec of one layer for a transformer config.
    """

    name: str
    hf_model_type: str
    hf_architecture: str
    config: ConfigMap
    weights: Callable[[ModelShape], WeightMap]
    layer_spec: Callable[[TransformerConfig], ModuleSpec]
    aliases: tuple[str, ...] = ()
    also_reads: tuple[str, ...] = field(default=())

    def num_parameters(self, shape: ModelShape) -> int:
        """Number of weights, a tied table counted once."""
        return self.weights(shape).num_parameters(shape)

    def hf_config(self, shape: ModelShape, dtype: str) -> dict[str, Any]:
        """A fresh ``config.json`` for a model that came from no Hugging Face folder.

        Args:
            dtype: "float32", "bfloat16" or "float16".
        """
        return {
            "architectures": [self.hf_architecture],
            "model_type": self.hf_model_type,
            "torch_dtype": dtype,
            **self.config.to_hf(shape),
        }
