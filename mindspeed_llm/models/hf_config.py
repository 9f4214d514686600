"""Hugging Face ``config.json`` to :class:`ModelShape` and back, from one declaration.

Every key of the file is used, known to be irrelevant to the architecture, or refused: a setting
that would change the numbers must never pass unnoticed. Both spellings of rotary settings are
read (``rope_theta``/``rope_scaling`` of transformers 4, ``rope_parameters`` of transformers 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.models.shape import ModelShape, RopeScaling


@dataclass(frozen=True)
class Field:
    """A ``config.json`` key and the shape field it fills, unchanged.

    ``default`` is what the Hugging Face class takes when the key is absent; without one the key
    is required. A head size or key/value head count that is null is computed.
    """

    hf: str
    shape: str
    default: Any = None


@dataclass(frozen=True)
class Fixed:
    """A key that must have one of ``values`` (the first is its default) for this family."""

    hf: str
    values: tuple[Any, ...]


# Keys that change no logit of a causal language model at inference: book-keeping, token ids,
# initialisation, and library switches.
IRRELEVANT = frozenset(
    """
    _attn_implementation _name_or_path add_cross_attention architectures attention_dropout
    auto_map bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward dtype
    eos_token_id finetuning_task forced_bos_token_id forced_eos_token_id id2label
    initializer_range is_decoder is_encoder_decoder is_llama_config label2id max_window_layers
    model_type name_or_path output_attentions output_hidden_states pad_token_id prefix
    pretraining_tp problem_type return_dict rope_interleaved sep_token_id task_specific_params
    tf_legacy_loss tokenizer_class torch_dtype torchscript transformers_version
    transformers.js_config use_bfloat16 use_cache use_mrope unsloth_version unsloth_fixed
    """.split()
)
_COMPUTED = frozenset({"num_query_groups", "kv_channels"})
_ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})


@dataclass(frozen=True)
class ConfigMap:
    """How one family's ``config.json`` maps to a shape.

    Attributes:
        fields: keys copied to shape fields.
        fixed: keys whose other values the family does not implement.
        constants: shape fields that the family fixes and the file does not hold.
        rope_types: rotary scaling kinds the family implements, besides none.
        default_rope_theta: rotary base when the file is silent.
        tied_by_default: whether the tables are shared when the file is silent.
        inactive: keys that matter only beside a ``fixed`` setting that is off.
    """

    fields: tuple[Field, ...]
    fixed: tuple[Fixed, ...] = ()
    constants: Mapping[str, Any] | None = None
    rope_types: tuple[str, ...] = ()
    default_rope_theta: float = 10000.0
    tied_by_default: bool = False
    inactive: tuple[str, ...] = ()

    def to_shape(self, config: Mapping[str, Any], where: str = "config.json") -> ModelShape:
        """Read a parsed ``config.json``; ``where`` it lies, for messages.

        Raises:
            UserError: naming every key that is missing, or has a value not implemented.
        """
        problems = [*self._missing(config), *self._refused(config)]
        if problems:
            raise UserError(f"{where} does not fit this family:\n  " + "\n  ".join(problems))
        values: dict[str, Any] = dict(self.constants or {})
        for field in self.fields:
            value = config.get(field.hf, field.default)
            if value is None and field.shape not in _COMPUTED:
                value = field.default
            values[field.shape] = value
        heads = values["num_attention_heads"]
        if values.get("num_query_groups") is None:
            values["num_query_groups"] = heads
        if values.get("kv_channels") is None:
            values["kv_channels"] = values["hidden_size"] // heads
        base, scaling, percent = self._rope(config, where)
        tied = config.get("tie_word_embeddings")
        values["untie_embeddings_and_output_weights"] = not (
            self.tied_by_default if tied is None else tied
        )
        return ModelShape(**values, rotary_base=base, rope_scaling=scaling, rotary_percent=percent)

    def to_hf(self, shape: ModelShape) -> dict[str, Any]:
        """The architecture's keys of a ``config.json`` (transformers 4 spelling, which 5 reads)."""
        config: dict[str, Any] = {f.hf: f.values[0] for f in self.fixed if f.values[0] is not None}
        config |= {field.hf: getattr(shape, field.shape) for field in self.fields}
        config["tie_word_embeddings"] = shape.tied
        config["rope_theta"] = shape.rotary_base
        if shape.rope_scaling is not None:
            config["rope_scaling"] = {"rope_type": "llama3", **vars(shape.rope_scaling)}
        return config

    def unknown_keys(self, config: Mapping[str, Any]) -> list[str]:
        """Keys that are neither used nor known to be irrelevant, for a warning."""
        known = IRRELEVANT | _ROPE_KEYS | {"tie_word_embeddings", "layer_types"}
        known |= {f.hf for f in self.fields} | {f.hf for f in self.fixed} | set(self.inactive)
        return sorted(set(config) - known)

    def _missing(self, config: Mapping[str, Any]) -> list[str]:
        return [
            f"{field.hf} is missing"
            for field in self.fields
            if config.get(field.hf) is None
            and field.default is None
            and field.shape not in _COMPUTED
        ]

    def _refused(self, config: Mapping[str, Any]) -> list[str]:
        problems = []
        for fixed in self.fixed:
            value = config.get(fixed.hf, fixed.values[0])
            if value not in fixed.values and value is not None:
                allowed = " or ".join(repr(v) for v in fixed.values)
                problems.append(f"{fixed.hf} is {value!r}; implemented: {allowed}")
        layer_types = config.get("layer_types") or []
        if any(kind != "full_attention" for kind in layer_types):
            problems.append(f"layer_types has {sorted(set(layer_types))}; only full_attention is")
        if config.get("quantization_config"):
            problems.append("quantization_config is set; dequantise the weights first")
        return problems

    def _rope(
        self, config: Mapping[str, Any], where: str
    ) -> tuple[float, RopeScaling | None, float]:
        new = config.get("rope_parameters") or {}
        old = config.get("rope_scaling") or {}
        if new and any(new.get(key, value) != value for key, value in old.items()):
            raise UserError(
                f"{where} has both rope_parameters and rope_scaling, and they differ: "
                f"{new} and {old}; remove the one that is wrong"
            )
        settings = {**old, **new}
        base = new.get("rope_theta", config.get("rope_theta", self.default_rope_theta))
        percent = new.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        kind = settings.get("rope_type", settings.get("type", "default")) or "default"
        if kind == "default":
            return float(base), None, float(percent)
        if kind not in self.rope_types:
            known = ", ".join(("default", *self.rope_types))
            raise UserError(
                f"{where}: rope scaling {kind!r} is not implemented here; known: {known}"
            )
        try:
            scaling = RopeScaling(
                factor=float(settings["factor"]),
                low_freq_factor=float(settings["low_freq_factor"]),
                high_freq_factor=float(settings["high_freq_factor"]),
                original_max_position_embeddings=int(settings["original_max_position_embeddings"]),
            )
        except KeyError as missing:
            raise UserError(f"{where}: rope scaling {kind!r} lacks {missing}") from None
        return float(base), scaling, float(percent)
