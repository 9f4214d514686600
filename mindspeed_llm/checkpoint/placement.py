"""Which tensors lie on which pipeline stage, under which names: the one list that everyone uses.

Writing, reading and live loading all walk it, so each Megatron tensor is met exactly once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mindspeed.errors import UserError
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.mapping import Mapping, layer_of, with_layer
from mindspeed_llm.models.registry import get_family
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import ExpertParallel, TensorParallel

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"

# TransformerEngine's modules, and torch_dist checkpoints, keep each norm inside the linear layer
# that follows it.
_FUSED_NORMS = (
    ("self_attention.linear_qkv.layer_norm_", "input_layernorm."),
    ("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm."),
    ("self_attention.linear_q_up_proj.layer_norm_", "self_attention.q_layernorm."),
    ("self_attention.linear_kv_up_proj.layer_norm_", "self_attention.kv_layernorm."),
)
_EXPERT = re.compile(r"(.*\.experts)\.local_experts\.(\d+)\.linear_fc([12])\.weight")
_NO_WEIGHTS = ("_extra_state", "rotary_pos_emb.inv_freq")
# How peft names the modules of a model that got a LoRA adapter, and the adapter's own tensors.
_WRAPPED = (("base_model.model.", ""), (".base_layer.", "."))
_ADAPTER = (".lora_A.", ".lora_B.")


def canonical_name(name: str) -> str:
    """The name in the weight map of a parameter that may have a fused-norm or wrapped name."""
    for fused, plain in (*_FUSED_NORMS, *_WRAPPED):
        name = name.replace(fused, plain)
    return name


def is_adapter(name: str) -> bool:
    """Whether a parameter belongs to a LoRA adapter beside the weights."""
    return any(half in name for half in _ADAPTER)


def is_weight(name: str) -> bool:
    """False for entries of a state dict that hold no trained numbers."""
    return not name.endswith(_NO_WEIGHTS)


def chunk_entries(
    family: Family,
    shape: ModelShape,
    layout: PipelineLayout,
    stage: int,
    chunk: int,
    experts: ExpertParallel | None = None,
) -> Iterator[tuple[str, Mapping]]:
    """(name within the chunk, weight-map entry) of every tensor of one model chunk.

    With tied embeddings and more than one stage, the last chunk's output layer is a copy of the
    embedding table, as in Megatron's model; one that predicts further tokens has the table too.

    Args:
        experts: which routed experts are there; None: all.
    """
    layers = {layer: i for i, layer in enumerate(layout.stages[stage][chunk])}
    first, last = layout.is_first(stage, chunk), layout.is_last(stage, chunk)
    embedding, by_layer, end = _entries(family.name, shape)
    if first:
        yield EMBEDDING, embedding
    for layer, index in layers.items():
        for entry in by_layer[layer] if layer is not None else ():
            if (name := _local_name(entry, shape, experts)) is not None:
                yield with_layer(name, index), entry
    for entry in end if last else ():
        if (name := _local_name(entry, shape, experts)) is not None:
            yield name, entry
    if last and not first:
        if shape.mtp_num_layers:
            yield EMBEDDING, embedding
        if shape.tied:
            yield OUTPUT, embedding


@lru_cache(maxsize=4)
def _entries(
    family: str, shape: ModelShape
) -> tuple[Mapping, dict[int, list[Mapping]], list[Mapping]]:
    """A model's entries: the embedding, those of each layer, and those of the last stage.

    Kept, since models with many experts have tens of thousands, asked for by many ranks.
    """
    by_layer: dict[int, list[Mapping]] = {layer: [] for layer in range(shape.num_layers)}
    others: list[Mapping] = []
    for entry in get_family(family).weights(shape).expand(shape):
        layer = layer_of(entry.megatron)
        (others if layer is None else by_layer[layer]).append(entry)
    (embedding,) = (entry for entry in others if entry.megatron == EMBEDDING)
    return embedding, by_layer, [entry for entry in others if entry is not embedding]


def _local_name(entry: Mapping, shape: ModelShape, experts: ExpertParallel | None) -> str | None:
    """The entry's name with the expert counted on its rank; None if it is on another."""
    if entry.expert is None or experts is None:
        return entry.megatron
    assert shape.experts is not None
    local = experts.holds(entry.expert, shape.experts.num_experts)
    if local is None:
        return None
    return entry.megatron.replace(f".local_experts.{entry.expert}.", f".local_experts.{local}.")


@dataclass(frozen=True)
class Held:
    """One tensor of one rank.

    Attributes:
        name: its name within the chunk.
        entries: what it consists of: one entry, or those of all its experts if ``stacked``.
        at: where the rank stands among those that share the entries' tensors.
        stacked: whether it is Megatron's grouped form. Each expert's matrix lies transposed in
            its memory, one after the other.
    """

    name: str
    entries: tuple[Mapping, ...]
    at: TensorParallel
    stacked: bool = False

    def dims(self, shape: ModelShape) -> tuple[int, ...]:
        """Size of the tensor."""
        dims = part_dims(self.entries[0], shape, self.at)
        if not self.stacked:
            return dims
        columns, rows = dims
        count = len(self.entries)
        if self.name.endswith("weight1"):
            return rows, count * columns
        return count * rows, columns


def held_tensors(
    family: Family,
    shape: ModelShape,
    layout: PipelineLayout,
    stage: int,
    chunk: int,
    at: TensorParallel,
    grouped: bool = False,
) -> Iterator[Held]:
    """Every tensor of one model chunk on one rank.

    Args:
        grouped: the experts of a layer are stacked into ``experts.weight1`` ``[hidden, experts x
            2 ffn]`` and ``experts.weight2`` ``[experts x ffn, hidden]``.
    """
    stacks: dict[str, list[Mapping]] = defaultdict(list)
    for name, entry in chunk_entries(family, shape, layout, stage, chunk, at.experts):
        if entry.expert is None:
            yield Held(name, (entry,), at)
        elif not grouped:
            yield Held(name, (entry,), at.within_expert())
        else:
            stacks[stacked_name(name)].append(entry)
    for name, entries in stacks.items():
        yield Held(name, tuple(entries), at.within_expert(), stacked=True)


def stacked_name(name: str) -> str:
    """Name of the stack to which an expert's tensor belongs."""
    match = _EXPERT.fullmatch(name)
    assert match is not None
    return f"{match[1]}.weight{match[3]}"


def sharded_place(
    entry: Mapping, shape: ModelShape
) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Where Megatron stores an entry's tensor in a ``torch_dist`` checkpoint.

    Returns:
        The key, the sizes of the leading dimensions along which tensors are stacked, and the
        index in each. Experts are stacked; layers are, where all of them are alike.
    """
    layer, sizes, indices = layer_of(entry.megatron), [], []
    key = entry.megatron
    for fused, plain in _fused_norms(entry, shape):
        key = key.replace(plain, fused)
    if layer is not None and shape.experts is None:
        key = key.replace(f"decoder.layers.{layer}.", "decoder.layers.", 1)
        sizes, indices = [shape.num_layers], [layer]
    if entry.expert is not None:
        assert shape.experts is not None
        key = key.replace(f".experts.local_experts.{entry.expert}.", ".experts.experts.")
        sizes, indices = [*sizes, shape.experts.num_experts], [*indices, entry.expert]
    return key, tuple(sizes), tuple(indices)


def _fused_norms(entry: Mapping, shape: ModelShape) -> list[tuple[str, str]]:
    """Which of the norms have the name of a linear layer in the layer of an entry."""
    qkv, fc1, q_up, kv_up = _FUSED_NORMS
    layer = layer_of(entry.megatron)
    # Layers that predict further tokens are like the last one.
    dense = shape.is_dense(shape.num_layers - 1 if layer is None else layer)
    attention = [qkv] if shape.latent is None else [q_up, kv_up]
    return [*attention, *([fc1] if dense else [])]


def part_dims(entry: Mapping, shape: ModelShape, at: TensorParallel) -> tuple[int, ...]:
    """Size of the part of ``entry`` that one tensor-parallel rank holds."""
    return entry.split.part_dims(entry.dims(shape), at)


def check_divides(shape: ModelShape, tensor: int, expert: int, expert_tensor: int) -> None:
    """Refuse parallel sizes over which the model does not divide.

    Vocabulary rows and attention heads are padded where they do not divide; MLPs are not.

    Raises:
        UserError: with the sizes that fit.
    """
    widths = {}
    if any(shape.is_dense(layer) for layer in range(shape.num_layers)):
        widths["the model's MLP width"] = shape.ffn_hidden_size
    if shape.experts is not None and shape.experts.moe_shared_expert_intermediate_size:
        widths["the shared experts' width"] = shape.experts.moe_shared_expert_intermediate_size
    for what, width in widths.items():
        _check_divides(what, width, "tensor-parallel", tensor)
    if shape.experts is None:
        if expert > 1:
            raise UserError(
                f"expert-parallel size {expert}: the model has no experts; leave the flag out"
            )
        return
    experts = shape.experts
    _check_divides("the number of experts", experts.num_experts, "expert-parallel", expert)
    width = experts.moe_ffn_hidden_size
    _check_divides("the experts' width", width, "expert-tensor-parallel", expert_tensor)
    if tensor % expert_tensor:
        raise UserError(
            f"expert-tensor-parallel size {expert_tensor} must divide the tensor-parallel size "
            f"{tensor}: rank files are named after tensor and expert ranks, so two ranks would "
            "share one; give 1, or leave the flag out for the tensor-parallel size"
        )


def _check_divides(what: str, width: int, which: str, size: int) -> None:
    if width % size:
        fits = [str(n) for n in range(1, 129) if width % n == 0]
        raise UserError(
            f"{what} {width} does not divide over {which} size {size}; sizes that fit: "
            f"{', '.join(fits)}"
        )
