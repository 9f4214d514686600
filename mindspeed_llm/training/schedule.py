"""Learning-rate and weight-decay schedules, counted in samples as Megatron does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from mindspeed_llm.console import warn

if TYPE_CHECKING:
    from megatron.core.optimizer import MegatronOptimizer

    from mindspeed_llm.flags import Config

# What must agree between a checkpoint's schedule and the flags, for the conflict report.
_SAVED = ("max_lr", "min_lr", "lr_warmup_steps", "lr_decay_steps", "lr_decay_style")


def build_scheduler(
    cfg: Config, optimizer: MegatronOptimizer, train_iters: int, batch: int
) -> OptimizerParamScheduler:
    """The schedule of a run of ``train_iters`` iterations of ``batch`` samples.

    Steps are samples, so that a change of the global batch size keeps the schedule's meaning.
    """
    options = cfg.optimizer

    def samples(iterations: int | None, given_samples: int | None, default: int) -> int:
        if given_samples is not None:
            return given_samples
        return default if iterations is None else iterations * batch

    decay = samples(options.lr_decay_iters, options.lr_decay_samples, train_iters * batch)
    if options.lr_warmup_fraction is not None:
        warmup = options.lr_warmup_fraction * decay
    else:
        warmup = samples(options.lr_warmup_iters or None, options.lr_warmup_samples or None, 0)
    wsd_decay = samples(options.lr_wsd_decay_iters, options.lr_wsd_decay_samples, 0)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=options.lr_warmup_init,
        max_lr=options.lr,
        min_lr=options.min_lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=decay,
        lr_decay_style=options.lr_decay_style,
        start_wd=options.start_weight_decay,
        end_wd=options.end_weight_decay,
        wd_incr_steps=train_iters * batch,
        wd_incr_style=options.weight_decay_incr_style,
        # A resumed run goes on with the saved schedule unless the flags are to override it.
        use_checkpoint_opt_param_scheduler=not options.override_opt_param_scheduler,
        override_opt_param_scheduler=options.override_opt_param_scheduler,
        wsd_decay_steps=wsd_decay,
        lr_wsd_decay_style=options.lr_wsd_decay_style,
    )


def restore_scheduler(scheduler: OptimizerParamScheduler, saved: dict) -> None:
    """Continue a saved schedule; say where the flags ask for another one.

    The optimizer's parameter groups carry their own copy of the peak and minimum rate, restored
    with the optimizer; they are set to the schedule in force, so that old and new never mix.
    """
    conflicts = [
        f"{name} {getattr(scheduler, name)} (saved: {saved[name]})"
        for name in _SAVED
        if name in saved and saved[name] != getattr(scheduler, name)
    ]
    scheduler.num_steps = 0
    scheduler.load_state_dict(saved)
    for group in scheduler.optimizer.param_groups:
        group["max_lr"] = scheduler.max_lr
        group["min_lr"] = scheduler.min_lr
    scheduler.step(0)
    if conflicts:
        used = "the flags'" if scheduler.override_opt_param_scheduler else "the checkpoint's"
        way_out = (
            ""
            if scheduler.override_opt_param_scheduler
            else "; --override-opt_param-scheduler takes the flags' instead"
        )
        warn(
            f"the schedule differs from the checkpoint's: {', '.join(conflicts)}. In use: "
            f"{used}{way_out}"
        )
