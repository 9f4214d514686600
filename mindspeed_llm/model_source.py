"""Which model a run is about: its shape from files where there are any, checked against flags.

Nothing is matched by hand: ``--load`` (a Hugging Face folder or a Megatron checkpoint) or
``--hf-config`` supplies the architecture. Shape flags that are given all the same must agree with
it; every difference is listed in one error.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.models import mtp
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.megatron_flags import MissingFlags, from_flags, to_flags
from mindspeed_llm.models.registry import (
    family_of_hf_config,
    family_of_shape,
    get_family,
    read_hf_config,
)
from mindspeed_llm.models.shape import ModelShape, padded_vocab_size

if TYPE_CHECKING:
    from mindspeed_llm.checkpoint.metadata import CheckpointLayout
    from mindspeed_llm.checkpoint.paths import Iteration
    from mindspeed_llm.checkpoint.source import WeightSource
    from mindspeed_llm.flags import Config


@dataclass(frozen=True)
class ResolvedModel:
    """The model of a run.

    Attributes:
        where: where the shape came from, for the start-up block.
        source: the weights to start from; None for a model from scratch.
    """

    family: Family
    shape: ModelShape
    where: str
    source: WeightSource | None

    def layout(self, cfg: Config) -> PipelineLayout:
        """The pipeline layout that the flags ask for."""
        return PipelineLayout.build(
            self.shape.num_layers,
            cfg.parallel.pipeline_model_parallel_size,
            layers_per_virtual_stage=cfg.parallel.num_layers_per_virtual_pipeline_stage,
            num_layer_list=cfg.parallel.num_layer_list,
            noop_layers=cfg.parallel.noop_layers or (),
        )

    def checkpoint_layout(self, cfg: Config) -> CheckpointLayout:
        """How a checkpoint of a run with these flags is divided over ranks."""
        from mindspeed_llm.checkpoint.metadata import CheckpointLayout, ExpertLayout

        tensor = cfg.parallel.tensor_model_parallel_size
        experts = None
        if self.shape.experts is not None:
            experts = ExpertLayout(
                cfg.moe.expert_model_parallel_size, cfg.moe.expert_tensor_parallel_size or tensor
            )
        return CheckpointLayout(tensor, self.layout(cfg), self.padded_vocab(cfg), experts)

    def fill(self, cfg: Config) -> Config:
        """The flags with the model's shape in them, so that they can be checked against it.

        What is filled in does not count as given by the user.
        """
        known = {name: value for name, value in to_flags(self.shape).items() if value is not None}
        num_layers = self.shape.num_layers + _noop_layers(cfg)
        values = known | {"group_query_attention": True, "num_layers": num_layers}
        return dataclasses.replace(cfg.replace(**values), given=cfg.given)

    def padded_vocab(self, cfg: Config) -> int:
        """Rows of the embedding table over all tensor-parallel ranks.

        Raises:
            UserError: if ``--padded-vocab-size`` is too small or does not divide.
        """
        ranks = cfg.parallel.tensor_model_parallel_size
        given = cfg.model.padded_vocab_size
        if given is None:
            return padded_vocab_size(
                self.shape.vocab_size, ranks, cfg.model.make_vocab_size_divisible_by
            )
        if given < self.shape.vocab_size or given % ranks:
            raise UserError(
                f"--padded-vocab-size {given} must be at least the vocabulary of "
                f"{self.shape.vocab_size} and a multiple of the tensor-parallel size {ranks}; "
                "leave it out to have it computed"
            )
        return given


def resolve_model(
    cfg: Config,
    load: Path | str | None,
    iteration: Iteration | None = None,
    tokenizer_vocab: int | None = None,
) -> ResolvedModel:
    """Find the model's shape and the weights to start from.

    Args:
        load: checkpoint to start from (already decided between ``--load`` and ``--save``).
        iteration: the iteration in it; None for the one that the pointer file names.
        tokenizer_vocab: the tokenizer's size, for a model from scratch.
    """
    from mindspeed_llm.checkpoint.source import open_source

    source = None
    if load is not None:
        step = None if iteration == "release" else iteration
        source = open_source(load, ckpt_step=step, model_type_hf=_model_type(cfg))
    if cfg.checkpoint.hf_config is not None:
        resolved = _with_wanted_mtp(cfg, _from_hf_config(cfg, source))
    elif source is not None:
        resolved = ResolvedModel(source.family, source.shape, source.describe(), source)
        resolved = _with_wanted_mtp(cfg, resolved)
    else:
        shape = _from_flags(cfg, tokenizer_vocab)
        family = family_of_shape(shape)
        return ResolvedModel(_checked_family(cfg, family), shape, "flags", None)
    _refuse_differences(cfg, resolved)
    limit = _given(cfg, "max_position_embeddings")
    if limit is not None:
        # Rotary positions have no table: the flag is a limit of the run, not of the weights.
        shape = dataclasses.replace(resolved.shape, max_position_embeddings=limit)
        resolved = dataclasses.replace(resolved, shape=shape)
    return resolved


def _model_type(cfg: Config) -> str | None:
    return _given(cfg, "model_type_hf")


def _given(cfg: Config, name: str) -> Any:
    """The value of a flag that the user set; None when it was left out."""
    if name not in cfg.given:
        return None
    for group in (cfg.model, cfg.moe, cfg.checkpoint):
        if hasattr(group, name):
            return getattr(group, name)
    raise KeyError(name)


def _noop_layers(cfg: Config) -> int:
    """How many no-op layers the flags add; ``--num-layers`` counts them."""
    return len(cfg.parallel.noop_layers or ())


def _checked_family(cfg: Config, found: Family) -> Family:
    name = _model_type(cfg)
    if name is None:
        return found
    family = get_family(name)
    if family is not found:
        raise UserError(
            f"--model-type-hf {name} is the {family.name} family, but the model is of the "
            f"{found.name} family; leave the flag out or correct it"
        )
    return family


def _from_hf_config(cfg: Config, source: WeightSource | None) -> ResolvedModel:
    assert cfg.checkpoint.hf_config is not None
    folder = Path(cfg.checkpoint.hf_config)
    if folder.name == "config.json":
        folder = folder.parent
    config = read_hf_config(folder)
    family = _checked_family(cfg, family_of_hf_config(config, str(folder / "config.json")))
    shape = family.config.to_shape(config, str(folder / "config.json"))
    if source is not None:
        shape = dataclasses.replace(shape, mtp_num_layers=source.shape.mtp_num_layers)
        theirs = dataclasses.replace(
            source.shape, max_position_embeddings=shape.max_position_embeddings
        )
        if theirs != shape:
            lines = [
                f"{field}: {getattr(theirs, field)} in --load, {getattr(shape, field)} in "
                "--hf-config"
                for field in (f.name for f in dataclasses.fields(shape))
                if getattr(theirs, field) != getattr(shape, field)
            ]
            raise UserError("--hf-config and --load are different models:\n  " + "\n  ".join(lines))
    return ResolvedModel(family, shape, f"{folder}/config.json", source)


def _from_flags(cfg: Config, tokenizer_vocab: int | None) -> ModelShape:
    flags = {**vars(cfg.model), **vars(cfg.moe)}
    if cfg.model.num_layers is not None:
        flags["num_layers"] = cfg.model.num_layers - _noop_layers(cfg)
    heads, hidden = cfg.model.num_attention_heads, cfg.model.hidden_size
    if cfg.model.kv_channels is None and heads and hidden and hidden % heads:
        raise UserError(
            f"--hidden-size {hidden} does not divide by --num-attention-heads {heads}; give the "
            "head size with --kv-channels"
        )
    try:
        return from_flags(flags, tokenizer_vocab, cfg.training.seq_length)
    except MissingFlags as error:
        missing = ", ".join(_spelled(name) for name in error.names)
        missing = missing.replace("--vocab-size", "--vocab-size or --padded-vocab-size")
        raise UserError(
            f"the model's shape is not known: {missing} missing. Give them, or let "
            "--load or --hf-config DIR supply the whole shape"
        ) from None


def _with_wanted_mtp(cfg: Config, resolved: ResolvedModel) -> ResolvedModel:
    """The model without layers that predict further tokens, where nothing needs them."""
    unwanted = not cfg.trains or cfg.posttrain.stage == "dpo" or _given(cfg, "mtp_num_layers") == 0
    if not unwanted or not resolved.shape.mtp_num_layers:
        return resolved
    if resolved.source is not None:
        resolved.source.leave_out_mtp()
    return dataclasses.replace(resolved, shape=mtp.without(resolved.shape))


def _refuse_differences(cfg: Config, resolved: ResolvedModel) -> None:
    """Every shape flag that was given must say what the files say."""
    found = to_flags(resolved.shape)
    found["num_layers"] += _noop_layers(cfg)
    differences = [
        f"{_spelled(name)} {given}, the model has {found[name]}"
        for name in found
        if name != "max_position_embeddings"
        and (given := _given(cfg, name)) is not None
        and given != found[name]
        # Names of sizes alone say nothing where the switch that they belong to is off.
        and not (name == "num_query_groups" and not cfg.model.group_query_attention)
    ]
    if differences:
        raise UserError(
            f"flags disagree with the model in {resolved.where}:\n  "
            + "\n  ".join(differences)
            + "\nleave these flags out: the shape is read from the model"
        )


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"
