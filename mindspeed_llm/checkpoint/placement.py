"""Which tensors lie on which pipeline stage, under which names: the one list that everyone uses.

Writing, reading and live loading all walk it, so each Megatron tensor is met exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindspeed.errors import UserError
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.mapping import Mapping, layer_of, with_layer
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import TensorParallel

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"

# TransformerEngine's modules, and torch_dist checkpoints, keep each norm inside the linear layer
# that follows it.
_FUSED_NORMS = (
    ("self_attention.linear_qkv.layer_norm_", "input_layernorm."),
    ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."),
)
_NO_WEIGHTS = ("_extra_state", "rotary_pos_emb.inv_freq")


def canonical_name(name: str) -> str:
    """The name in the weight map of a parameter that may have a fused-norm name."""
    for fused, plain in _FUSED_NORMS:
        name = name.replace(fused, plain)
    return name


def is_weight(name: str) -> bool:
    """False for entries of a state dict that hold no trained numbers."""
    return not name.endswith(_NO_WEIGHTS)


def chunk_entries(
    family: Family, shape: ModelShape, layout: PipelineLayout, stage: int, chunk: int
) -> Iterator[tuple[str, Mapping]]:
    """(name within the chunk, weight-map entry) of every tensor of one model chunk.

    With tied embeddings and more than one stage, the last chunk's output layer is a copy of the
    embedding table, as in Megatron's model.
    """
    layers = {layer: i for i, layer in enumerate(layout.stages[stage][chunk])}
    first, last = layout.is_first(stage, chunk), layout.is_last(stage, chunk)
    embedding = None
    for entry in family.weights(shape).expand(shape):
        layer = layer_of(entry.megatron)
        if layer is not None:
            if layer in layers:
                yield with_layer(entry.megatron, layers[layer]), entry
        elif entry.megatron == EMBEDDING:
            embedding = entry
            if first:
                yield EMBEDDING, entry
        elif last:
            yield entry.megatron, entry
    if shape.tied and last and not first:
        assert embedding is not None
        yield OUTPUT, embedding


def part_dims(entry: Mapping, shape: ModelShape, at: TensorParallel) -> tuple[int, ...]:
    """Size of the part of ``entry`` that one tensor-parallel rank holds."""
    return entry.split.part_dims(entry.dims(shape), at)


def check_tensor_parallel(shape: ModelShape, size: int) -> None:
    """Refuse a tensor-parallel size over which the model does not divide.

    Vocabulary rows and attention heads are padded where they do not divide; the MLP is not.

    Raises:
        UserError: with the sizes that fit.
    """
    width = shape.ffn_hidden_size
    if width % size:
        fits = [str(n) for n in range(1, 129) if width % n == 0]
        raise UserError(
            f"the model's MLP width {width} does not divide over tensor-parallel size {size}; "
            f"sizes that fit: {', '.join(fits)}"
        )
