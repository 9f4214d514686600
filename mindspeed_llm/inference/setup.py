"""From flags to an engine: model, weights, tokenizer and end tokens."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.flags import validate
from mindspeed_llm.inference.text import end_tokens

if TYPE_CHECKING:
    from mindspeed_llm.data.tokenizer import Tokenizer
    from mindspeed_llm.distributed import Position
    from mindspeed_llm.flags import Config
    from mindspeed_llm.inference.engine import Engine
    from mindspeed_llm.model_source import ResolvedModel


@dataclass(frozen=True)
class Generator:
    """What generation needs, and what to say about it.

    Attributes:
        notes: lines for the start-up block.
    """

    engine: Engine
    tokenizer: Tokenizer
    position: Position
    notes: tuple[str, ...]


def build_generator(cfg: Config) -> Generator:
    """Join the process groups and load the model that ``--load`` names onto this rank.

    Raises:
        UserError: no model or tokenizer, or flags that do not fit them.
    """
    from mindspeed_llm import distributed
    from mindspeed_llm.model_source import resolve_model
    from mindspeed_llm.training.checkpointing.start import choose_start

    if cfg.checkpoint.load is None:
        raise UserError(
            "--load is missing: the model to generate with, a Hugging Face folder or a checkpoint"
        )
    start = choose_start(cfg)
    model = resolve_model(cfg, start.root, start.iteration)
    tokenizer = _tokenizer(cfg, model)
    folders = (_side_folder(model), tokenizer.folder)
    ends = end_tokens(folders, tokenizer, cfg.inference.add_eos_token or ())
    validate(model.fill(cfg), int(os.environ.get("WORLD_SIZE", "1")))
    layout = model.layout(cfg)
    position = distributed.initialize(cfg, layout.chunks)
    engine, loaded = _engine(cfg, model, position, frozenset(ends))
    names = ", ".join(
        f"{tokenizer.hf.convert_ids_to_tokens(token)} ({where})" for token, where in ends.items()
    )
    notes = [*start.notes, loaded, f"an answer ends at {names or 'its length only'}"]
    if cfg.inference.use_kv_cache and not engine.cached:
        notes.append(f"no key/value cache: {', '.join(engine.obstacles)} not known to it")
    if position.data_size > 1:
        notes.append(
            f"{position.world} processes hold {position.data_size} copies of the model; one "
            "copy answers, the others stay idle"
        )
    shape = (
        f"{model.family.name}, {model.family.num_parameters(model.shape) / 1e6:.1f} M parameters"
    )
    return Generator(engine, tokenizer, position, (f"{shape}, from {model.where}", *notes))


def _engine(
    cfg: Config, model: ResolvedModel, position: Position, ends: frozenset[int]
) -> tuple[Engine, str]:
    from mindspeed_llm.inference.engine import Engine
    from mindspeed_llm.inference.layer import lay_out_for_decoding
    from mindspeed_llm.live_model import build_live_model

    # Sequence parallelism splits activations of training; one token cannot be split.
    changes = {"sequence_parallel": False, "perform_initialization": False}
    live = build_live_model(cfg, model, position, load_weights=True, **changes)
    for chunk in live.chunks:
        lay_out_for_decoding(chunk)
    return Engine(live.chunks, ends, use_kv_cache=cfg.inference.use_kv_cache), live.loaded


def _side_folder(model: ResolvedModel) -> Path | None:
    return None if model.source is None else model.source.side_folder


def _tokenizer(cfg: Config, model: ResolvedModel) -> Tokenizer:
    """The tokenizer of the flags, else the one that came with the weights."""
    from mindspeed_llm.data.tokenizer import TOKENIZER_FILES, Tokenizer, tokenizer_of

    flags = cfg.tokenizer
    folder = flags.tokenizer_name_or_path or flags.tokenizer_model
    beside = _side_folder(model)
    if folder is None and beside is not None:
        found = any((beside / name).is_file() for name in TOKENIZER_FILES)
        folder = str(beside) if found else None
    if folder is None:
        raise UserError(
            f"no tokenizer: {cfg.checkpoint.load} holds none; give its folder with "
            "--tokenizer-name-or-path"
        )
    tokenizer = tokenizer_of(flags, folder)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"--tokenizer-type {flags.tokenizer_type} has no text to generate")
    return tokenizer
