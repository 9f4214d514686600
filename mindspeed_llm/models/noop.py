"""No-op layers: places in a pipeline stage without a layer, so that stages are of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor

from mindspeed.errors import UserError
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.shape import ModelShape


class NoopLayer(MegatronModule):
    """Passes hidden states on; counted as a layer, so that the others keep their numbers."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int = 1,
        pg_collection: Any = None,
        vp_stage: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__(config)
        stage = None if pg_collection is None else pg_collection.pp.rank()
        self.layer_number = layer_number + get_transformer_layer_offset(config, vp_stage, stage)

    def forward(
        self, hidden_states: Tensor, *args: Any, context: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """``hidden_states`` and ``context`` as they came."""
        return hidden_states, context


def chunk_spec(
    spec: ModuleSpec | TransformerBlockSubmodules, places: Sequence[int | None]
) -> ModuleSpec | TransformerBlockSubmodules:
    """``spec`` with no-op layers in the places that have no layer."""
    if None not in places:
        return spec
    from mindspeed.transformer.norm import Norm

    if isinstance(spec, ModuleSpec):
        spec = TransformerBlockSubmodules(layer_specs=[spec] * len(places), layer_norm=Norm)
    layers = [
        ModuleSpec(NoopLayer) if place is None else layer
        for place, layer in zip(places, spec.layer_specs or [], strict=True)
    ]
    return replace(spec, layer_specs=layers)


def check_windows(shape: ModelShape, layout: PipelineLayout) -> None:
    """Refuse no-op layers that would shift windows of attention to the wrong layers.

    Megatron gives every other layer a window by its number, no-op layers included.
    """
    shifted = any(
        layer is not None and (place - layer) % 2 for place, layer in enumerate(layout.places)
    )
    if shape.interleave_sliding_window and shifted:
        listed = ",".join(map(str, layout.noop_layers))
        raise UserError(
            f"--noop-layers {listed}: every other layer of this model has a sliding window, and "
            "an odd number of no-op layers before a layer would exchange them; put no-op layers "
            "at the end, or in pairs"
        )
