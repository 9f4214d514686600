"""Which weights the reference of DPO has, and the frozen model with them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mindspeed.errors import UserError
from mindspeed_llm.live_model import build_live_model
from mindspeed_llm.model_source import ResolvedModel, resolve_model
from mindspeed_llm.posttrain.dpo import Reference
from mindspeed_llm.training.checkpointing.load import wants_full_resume
from mindspeed_llm.training.checkpointing.start import choose_start
from mindspeed_llm.training.setup import Run, cast_modules

if TYPE_CHECKING:
    from mindspeed_llm.flags import Config
    from mindspeed_llm.training.checkpointing.load import Saved
    from mindspeed_llm.training.checkpointing.start import Start


def build_reference(run: Run, start: Start, saved: Saved | None) -> tuple[Reference, str]:
    """A frozen model of ``--ref-model``, or of the weights that the run began from.

    Returns:
        The reference, and the folder of its weights.

    Raises:
        UserError: it is not known, or is another model.
    """
    model, folder = _model(run, start, saved)
    live = build_live_model(run.cfg, model, run.position, load_weights=True)
    for chunk in live.chunks:
        chunk.requires_grad_(False)
    return Reference(cast_modules(run.cfg, live)), folder


def _model(run: Run, start: Start, saved: Saved | None) -> tuple[ResolvedModel, str]:
    flags = run.cfg.posttrain
    finetune = run.cfg.checkpoint.finetune and not start.continues
    if flags.ref_model is not None:
        return _resolved(run, flags.ref_model, flags.refer_model_iter, "--ref-model")
    if not wants_full_resume(saved, finetune):
        return run.model, str(start.root)
    if not start.continues:
        raise UserError(
            f"--load {start.root} is a run under way: its weights are no longer those that it "
            "began from. Name these with --ref-model; or, to go on with a run of --stage dpo, give "
            "--auto-resume, --save with its folder and --load with the model that it began from; "
            "or begin anew from these weights with --finetune."
        )
    assert run.cfg.checkpoint.load is not None
    return _resolved(run, run.cfg.checkpoint.load, run.cfg.checkpoint.ckpt_step, "--load")


def _resolved(run: Run, folder: str, step: int | None, flag: str) -> tuple[ResolvedModel, str]:
    cfg = _loading(run.cfg, folder, step)
    try:
        start = choose_start(cfg)
    except UserError as error:
        raise UserError(str(error).replace("--load", flag, 1)) from None
    model = resolve_model(cfg, start.root, start.iteration)
    if model.shape != run.model.shape:
        differences = [
            f"{name} {theirs}, in the policy {ours}"
            for name, theirs, ours in (
                (field.name, getattr(model.shape, field.name), getattr(run.model.shape, field.name))
                for field in dataclasses.fields(model.shape)
            )
            if theirs != ours
        ]
        raise UserError(f"{flag} {folder} is another model: {'; '.join(differences)}")
    return model, folder


def _loading(cfg: Config, folder: str, step: int | None) -> Config:
    """The flags of a run that loads ``folder``, and saves nowhere."""
    loading = cfg.replace(load=folder, ckpt_step=step, save=None, auto_resume=False)
    return dataclasses.replace(loading, given=cfg.given)
