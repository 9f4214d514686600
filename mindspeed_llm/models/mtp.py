"""Multi-token prediction (arXiv:2412.19437, 2.2): layers after the last that look further ahead.

Layer i takes the hidden states of the one before it and the embedding of the token i + 1 places
ahead, and predicts the token after that with the model's own output layer. Hugging Face files
count these layers on from the model's last one, and may hold copies of both tables with each.
Megatron keeps them on the last pipeline stage, beside a copy of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.models.hf_config import Config, Field
from mindspeed_llm.models.mapping import Mapping
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import COLUMN

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

FIELD = Field("num_nextn_predict_layers", "mtp_num_layers", default=0, also=("num_mtp_layers",))


def _hf_prefix(shape: ModelShape, index: int) -> str:
    return f"model.layers.{shape.num_layers + index}."


def copies(shape: ModelShape, name: str) -> list[str]:
    """Hugging Face's names of the layers' copies of a table."""
    return [_hf_prefix(shape, index) + name for index in range(shape.mtp_num_layers)]


def entries(shape: ModelShape, layer: Sequence[Mapping]) -> list[Mapping]:
    """The entries of all these layers; ``layer`` are the patterns of a decoder layer."""
    found = []
    for index in range(shape.mtp_num_layers):
        found += _own_entries(shape, index)
        number = shape.num_layers + index
        for pattern in layer:
            for entry in pattern.at_layer(shape, number):
                within = entry.megatron.removeprefix(f"decoder.layers.{number}.")
                name = f"mtp.layers.{index}.transformer_layer.{within}"
                found.append(replace(entry, megatron=name))
    return found


def _own_entries(shape: ModelShape, index: int) -> list[Mapping]:
    names = {"enorm": "enorm", "hnorm": "hnorm", "final_layernorm": "shared_head.norm"}
    prefix, hf_prefix = f"mtp.layers.{index}.", _hf_prefix(shape, index)
    norms = [
        Mapping(f"{prefix}{ours}.weight", (f"{hf_prefix}{hf}.weight",), lambda s: (s.hidden_size,))
        for ours, hf in names.items()
    ]
    projection = Mapping(
        f"{prefix}eh_proj.weight",
        (f"{hf_prefix}eh_proj.weight",),
        lambda s: (s.hidden_size, 2 * s.hidden_size),
        split=COLUMN,
    )
    return [*norms, projection]


def shape_of_files(shape: ModelShape, stored: Iterable[str]) -> ModelShape:
    """The shape without these layers if files hold no weight of them, whatever the config says.

    ``transformers`` drops them when it saves a model, and keeps the number in ``config.json``.
    """
    beyond = tuple(_hf_prefix(shape, index) for index in range(shape.mtp_num_layers))
    if not beyond or any(name.startswith(beyond) for name in stored):
        return shape
    return without(shape)


def without(shape: ModelShape) -> ModelShape:
    """The same model without these layers."""
    return replace(shape, mtp_num_layers=0)


def config_without(config: Config) -> dict[str, Any]:
    """A ``config.json`` of the same model without these layers."""
    return {key: 0 if key in (FIELD.hf, *FIELD.also) else value for key, value in config.items()}


def config_fields(shape: ModelShape) -> dict[str, int]:
    """Fields of Megatron's ``TransformerConfig``.

    Raises:
        UserError: if the output layer is the embedding table.
    """
    if shape.mtp_num_layers and shape.tied:
        raise UserError("multi-token prediction with tied embeddings is not implemented")
    return {"mtp_num_layers": shape.mtp_num_layers} if shape.mtp_num_layers else {}


def block_spec(config: TransformerConfig, layer: ModuleSpec) -> ModuleSpec | None:
    """Megatron's module spec of all these layers, if there are any; ``layer`` is a decoder's."""
    from megatron.core.transformer.multi_token_prediction import (
        MultiTokenPredictionBlock,
        MultiTokenPredictionBlockSubmodules,
        MultiTokenPredictionLayer,
        MultiTokenPredictionLayerSubmodules,
    )
    from megatron.core.transformer.spec_utils import ModuleSpec

    from mindspeed.transformer.spec_provider import MindSpeedSpecProvider

    if not config.mtp_num_layers:
        return None
    backend = MindSpeedSpecProvider()
    norm = backend.layer_norm(rms_norm=config.normalization == "RMSNorm")

    class Layer(MultiTokenPredictionLayer):
        """Megatron's layer, which recomputes packed sequences too."""

        def _checkpointed_forward(self, forward_func: Callable[..., Any], **given: Any) -> Any:
            # Only tensors can be saved for the backward pass.
            packed = {"packed_seq_params": given["packed_seq_params"]}

            def forward(*tensors: Any) -> Any:
                return forward_func(**{**dict(zip(given, tensors, strict=True)), **packed})

            return super()._checkpointed_forward(forward, **{**given, "packed_seq_params": None})

    one = ModuleSpec(
        Layer,
        submodules=MultiTokenPredictionLayerSubmodules(
            enorm=norm,
            hnorm=norm,
            eh_proj=backend.column_parallel_linear(),
            transformer_layer=layer,
            layer_norm=norm,
        ),
    )
    specs = [one] * config.mtp_num_layers
    return ModuleSpec(
        MultiTokenPredictionBlock, submodules=MultiTokenPredictionBlockSubmodules(layer_specs=specs)
    )
