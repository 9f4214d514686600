"""The numbers that define an architecture, under the names of Megatron's flags."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from mindspeed.errors import UserError


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's frequency-dependent rotary scaling (Hugging Face ``rope_type: llama3``).

    Wavelengths beyond ``original_max_position_embeddings / low_freq_factor`` are stretched by
    ``factor``, those below ``original.../high_freq_factor`` are kept, and between them the two
    are mixed linearly.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with RMSNorm, rotary positions and a gated SiLU MLP.

    ``vocab_size`` is the true number of rows of the embedding table as Hugging Face stores it;
    padding for tensor parallelism is a matter of layout (:func:`padded_vocab_size`).
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    rotary_percent: float = 1.0
    rope_scaling: RopeScaling | None = None
    untie_embeddings_and_output_weights: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_attention_heads % self.num_query_groups:
            raise UserError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_query_groups {self.num_query_groups}"
            )

    @property
    def tied(self) -> bool:
        """Whether the output layer shares the input embedding's weight."""
        return not self.untie_embeddings_and_output_weights

    @property
    def query_size(self) -> int:
        """Rows of the query projection: heads x head size (not always hidden_size)."""
        return self.num_attention_heads * self.kv_channels

    @property
    def kv_size(self) -> int:
        """Rows of the key (or value) projection."""
        return self.num_query_groups * self.kv_channels

    def num_parameters(self) -> int:
        """Number of weights, a tied table counted once."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        if self.add_qkv_bias:
            attention += self.query_size + 2 * self.kv_size
        if self.qk_layernorm:
            attention += 2 * self.kv_channels
        mlp = 3 * self.hidden_size * self.ffn_hidden_size
        tables = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        norms = 2 * self.hidden_size
        return self.num_layers * (attention + mlp + norms) + tables + self.hidden_size

    def to_dict(self) -> dict:
        """JSON-safe form, as stored in checkpoints."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> ModelShape:
        """The inverse of :meth:`to_dict`."""
        values = dict(values)
        if values.get("rope_scaling"):
            values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
        return cls(**values)


def padded_vocab_size(vocab_size: int, tensor_parallel: int, divisible_by: int = 1) -> int:
    """Rows of the embedding table once it divides over TP (Megatron's rule).

    The table is padded to a multiple of ``divisible_by * tensor_parallel``.
    """
    multiple = divisible_by * tensor_parallel
    return (vocab_size + multiple - 1) // multiple * multiple


def padded_query_groups(shape: ModelShape, tensor_parallel: int) -> int:
    """Key/value heads of a layout: the model's, or more where heads do not divide over TP.

    Megatron needs query heads that divide over the tensor-parallel ranks, and key/value heads
    that divide or are divided. Elsewhere whole groups of zero heads are added, which leaves the
    model as it is (:class:`mindspeed_llm.models.splits.Heads`).
    """
    heads, groups = shape.num_attention_heads, shape.num_query_groups
    fits = groups % tensor_parallel == 0 or tensor_parallel % groups == 0
    if heads % tensor_parallel == 0 and fits:
        return groups
    return padded_vocab_size(groups, tensor_parallel)
