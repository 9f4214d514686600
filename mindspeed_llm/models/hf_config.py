"""Hugging Face ``config.json`` to :class:`ModelShape` and back, from one declaration.

Every key of the file is used, known to be irrelevant to the architecture, or refused: a setting
that would change the numbers must never pass unnoticed. Both spellings of rotary settings are
read (``rope_theta``/``rope_scaling`` of transformers 4, ``rope_parameters`` of transformers 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mindspeed.errors import UserError
from mindspeed_llm.models import rope_scaling
from mindspeed_llm.models.shape import Experts, LatentAttention, ModelShape

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A ``config.json`` key and the shape field it fills.

    ``default`` is what the Hugging Face class takes when the key is absent; without one the key
    is required. A head size or key/value head count that is null is computed.

    Attributes:
        shape: the field, ``experts.`` or ``latent.`` before it where it is a part's.
        read: the shape's value from the key's and the whole file, where they differ.
        write: the key's value from a shape; None leaves the key out.
        nullable: whether null is a value of its own.
        also: other names of the key, read where it is absent.
    """

    hf: str
    shape: str
    default: Any = None
    read: Callable[[Any, Config], Any] | None = None
    write: Callable[[ModelShape], Any] | None = None
    nullable: bool = False
    also: tuple[str, ...] = ()

    def value_in(self, config: Config) -> Any:
        """The key's value, or the default where the file has none."""
        given = (config[name] for name in (self.hf, *self.also) if name in config)
        return next(given, self.default)

    def value_for_hf(self, shape: ModelShape) -> Any:
        """What the key of a fresh ``config.json`` says."""
        return self.write(shape) if self.write else attrgetter(self.shape)(shape)


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
_OLD_ROPE_TYPES = {"su": "longrope"}
_COMPUTED = frozenset({"num_query_groups", "kv_channels"})
_ROPE_KEYS = frozenset({"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})


@dataclass(frozen=True)
class ConfigMap:
    """How one family's ``config.json`` maps to a shape.

    Attributes:
        fields: keys that fill shape fields.
        fixed: keys whose other values the family does not implement.
        constants: shape fields that the family fixes and the file does not hold; a function is
            given the values of the fields.
        rope_types: rotary scaling kinds the family implements, besides none.
        default_rope_theta, default_rotary_percent: when the file is silent.
        tied_by_default: whether the tables are shared when the file is silent.
        inactive: keys that matter only beside a ``fixed`` setting that is off.
        layer_type: what ``layer_types`` must say of each layer.
    """

    fields: tuple[Field, ...]
    fixed: tuple[Fixed, ...] = ()
    constants: Mapping[str, Any] | None = None
    rope_types: tuple[str, ...] = ()
    default_rope_theta: float = 10000.0
    default_rotary_percent: float = 1.0
    tied_by_default: bool = False
    inactive: tuple[str, ...] = ()
    layer_type: Callable[[int], str] = lambda layer: "full_attention"

    def to_shape(self, config: Mapping[str, Any], where: str = "config.json") -> ModelShape:
        """Read a parsed ``config.json``; ``where`` it lies, for messages.

        Raises:
            UserError: naming every key that is missing, or has a value not implemented.
        """
        problems = [*self._missing(config), *self._mistyped(config), *self._refused(config)]
        if problems:
            raise UserError(f"{where} does not fit this family:\n  " + "\n  ".join(problems))
        values = {field.shape: self._read(field, config) for field in self.fields}
        heads = values["num_attention_heads"]
        if values.get("num_query_groups") is None:
            values["num_query_groups"] = heads
        if values.get("kv_channels") is None:
            values["kv_channels"] = values["hidden_size"] // heads
        for name, constant in (self.constants or {}).items():
            values[name] = constant(values) if callable(constant) else constant
        base, scaling, percent = self._rope(config, where)
        tied = config.get("tie_word_embeddings")
        values["untie_embeddings_and_output_weights"] = not (
            self.tied_by_default if tied is None else tied
        )
        values |= {"rotary_base": base, "rope_scaling": scaling, "rotary_percent": percent}
        return _shape_of(values)

    @staticmethod
    def _read(field: Field, config: Config) -> Any:
        value = field.value_in(config)
        if value is None and not field.nullable and field.shape not in _COMPUTED:
            value = field.default
        return field.read(value, config) if field.read else value

    def to_hf(self, shape: ModelShape) -> dict[str, Any]:
        """The architecture's keys of a ``config.json`` (transformers 4 spelling, which 5 reads)."""
        config: dict[str, Any] = {f.hf: f.values[0] for f in self.fixed if f.values[0] is not None}
        values = {field.hf: field.value_for_hf(shape) for field in self.fields}
        nullable = {field.hf for field in self.fields if field.nullable}
        config |= {k: v for k, v in values.items() if v is not None or k in nullable}
        config["tie_word_embeddings"] = shape.tied
        config["rope_theta"] = shape.rotary_base
        if shape.rotary_percent != 1.0:
            config["partial_rotary_factor"] = shape.rotary_percent
        if shape.rope_scaling is not None:
            config["rope_scaling"] = _scaling_for_hf(shape.rope_scaling)
        return config

    def unknown_keys(self, config: Mapping[str, Any]) -> list[str]:
        """Keys that are neither used nor known to be irrelevant, for a warning."""
        known = IRRELEVANT | _ROPE_KEYS | {"tie_word_embeddings", "layer_types"}
        known |= {name for f in self.fields for name in (f.hf, *f.also)}
        known |= {f.hf for f in self.fixed} | set(self.inactive)
        return sorted(set(config) - known)

    def _missing(self, config: Mapping[str, Any]) -> list[str]:
        return [
            f"{field.hf} is missing"
            for field in self.fields
            if field.value_in(config) is None
            and field.default is None
            and not field.nullable
            and field.shape not in _COMPUTED
        ]

    def _mistyped(self, config: Mapping[str, Any]) -> list[str]:
        """Numbers that are not numbers, where they are taken as they stand."""
        lines = []
        for field in self.fields:
            value = field.value_in(config)
            kinds = _NUMBERS.get(_declared(field.shape).split(" | ")[0])
            if value is None or field.read is not None or kinds is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kinds):
                wanted = "a number" if float in kinds else "an integer"
                lines.append(f"{field.hf} is {value!r}, not {wanted}")
        return lines

    def _refused(self, config: Mapping[str, Any]) -> list[str]:
        problems = []
        for fixed in self.fixed:
            value = config.get(fixed.hf, fixed.values[0])
            if value not in fixed.values and value is not None:
                allowed = " or ".join(repr(v) for v in fixed.values)
                problems.append(f"{fixed.hf} is {value!r}; implemented: {allowed}")
        layer_types = config.get("layer_types") or []
        if any(kind != self.layer_type(layer) for layer, kind in enumerate(layer_types)):
            known = " ".join(self.layer_type(layer) for layer in range(4))
            problems.append(f"layer_types is {' '.join(layer_types[:4])} ...; implemented: {known}")
        if config.get("quantization_config"):
            problems.append("quantization_config is set; dequantise the weights first")
        return problems

    def _rope(self, config: Config, where: str) -> tuple[float, rope_scaling.Scaling | None, float]:
        new = config.get("rope_parameters") or {}
        old = config.get("rope_scaling") or {}
        if new and any(new.get(key, value) != value for key, value in old.items()):
            raise UserError(
                f"{where} has both rope_parameters and rope_scaling, and they differ: "
                f"{new} and {old}; remove the one that is wrong"
            )
        settings = {**old, **new}
        base = float(new.get("rope_theta") or config.get("rope_theta") or self.default_rope_theta)
        percent = float(
            new.get("partial_rotary_factor")
            or config.get("partial_rotary_factor")
            or self.default_rotary_percent
        )
        kind = settings.get("rope_type", settings.get("type", "default")) or "default"
        kind = _OLD_ROPE_TYPES.get(kind, kind)
        if kind == "default":
            return base, None, percent
        if kind not in self.rope_types:
            known = ", ".join(("default", *self.rope_types))
            raise UserError(
                f"{where}: rope scaling {kind!r} is not implemented here; known: {known}"
            )
        try:
            return base, _scaling(kind, settings, config), percent
        except KeyError as missing:
            raise UserError(f"{where}: rope scaling {kind!r} lacks {missing}") from None


def _scaling(kind: str, settings: Config, config: Config) -> rope_scaling.Scaling:
    """Hugging Face's settings of one kind of scaling.

    Raises:
        KeyError: a setting is missing.
    """
    positions = config["max_position_embeddings"]
    original = settings.get("original_max_position_embeddings") or config.get(
        "original_max_position_embeddings"
    )
    if kind == "longrope":
        return rope_scaling.LongRope(
            factor=positions / original if original else float(settings["factor"]),
            original_max_position_embeddings=int(original or positions),
            short_factor=tuple(settings["short_factor"]),
            long_factor=tuple(settings["long_factor"]),
            given_attention_factor=settings.get("attention_factor"),
        )
    if kind == "yarn":
        optional = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        return rope_scaling.Yarn(
            factor=float(settings["factor"]),
            original_max_position_embeddings=int(original or positions),
            given_attention_factor=settings.get("attention_factor"),
            **{name: float(settings[name]) for name in optional if settings.get(name) is not None},
        )
    return rope_scaling.RopeScaling(
        factor=float(settings["factor"]),
        low_freq_factor=float(settings["low_freq_factor"]),
        high_freq_factor=float(settings["high_freq_factor"]),
        original_max_position_embeddings=int(settings["original_max_position_embeddings"]),
    )


def _scaling_for_hf(scaling: rope_scaling.Scaling) -> dict[str, Any]:
    values = rope_scaling.to_dict(scaling) or {}
    factor = values.pop("given_attention_factor", None)
    if factor is not None:
        values["attention_factor"] = factor
    return {key: value for key, value in values.items() if value is not None}


_NUMBERS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float)}
_PARTS = {"experts": Experts, "latent": LatentAttention}


def _declared(name: str) -> str:
    """The declared type of a shape's field, ``part.field`` for one of a part."""
    part, _, within = name.rpartition(".")
    return str((_PARTS[part] if part else ModelShape).__annotations__.get(within, ""))


def _shape_of(values: Mapping[str, Any]) -> ModelShape:
    """A shape from its fields; those of a part are named ``part.field``."""
    whole = {name: value for name, value in values.items() if "." not in name}
    for part, kind in _PARTS.items():
        prefix = f"{part}."
        own = {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}
        if own:
            whole[part] = kind(**own)
    return ModelShape(**whole)
