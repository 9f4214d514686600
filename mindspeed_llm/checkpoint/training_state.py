"""What a Megatron checkpoint holds beside the weights, for a conversion to another layout."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.dist_source import DistSource
from mindspeed_llm.checkpoint.source import WeightSource
from mindspeed_llm.checkpoint.torch_source import TorchSource

if TYPE_CHECKING:
    from mindspeed_llm.flags.convert import ConvertFlags

ITERATION = 1
"""Iteration number of converted weights; training starts from them at 0 all the same."""


@dataclass(frozen=True)
class TrainingState:
    """Where a run stood, and the optimizer's states as sources beside the weights.

    Without a run behind the weights all of it is empty.

    Attributes:
        common: entries of every rank file: schedule, number of steps.
        args: what the run's args say that neither model nor layout do.
    """

    iteration: int = ITERATION
    common: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    states: dict[str, TorchSource | DistSource] = field(default_factory=dict)

    def complete(self, args: Namespace) -> None:
        """Add to the args of a checkpoint what only the run knew."""
        vars(args).update({key: value for key, value in self.args.items() if key not in args})


WEIGHTS_ONLY = TrainingState()


def training_state(
    flags: ConvertFlags, source: WeightSource, *, merges: bool
) -> tuple[TrainingState, list[str]]:
    """What goes along with the weights of ``source``, and lines that say what does not.

    Args:
        merges: an adapter is merged into the weights.

    Raises:
        UserError: if a state is there, cannot go along, and the flags do not say to leave it out.
    """
    if not isinstance(source, TorchSource | DistSource) or not source.holds_optimizer:
        return WEIGHTS_ONLY, []
    if flags.no_save_optim:
        return WEIGHTS_ONLY, ["left out  the optimizer's state (--no-save-optim)"]
    reason = _obstacle(flags, source, merges)
    if reason:
        raise UserError(
            f"{source.path} holds an optimizer's state, which does not go along {reason}; "
            "--no-save-optim leaves it out and converts the weights"
        )
    assert source.iteration is not None
    common = source.common
    state = TrainingState(
        iteration=source.iteration,
        common={name: common[name] for name in ("opt_param_scheduler", "optimizer")},
        args={**vars(source.args), "resharded_from": source.layout.describe()},
        states={name: source.of_state(name) for name in sorted(source.states)},
    )
    names = ", ".join(state.states)
    return state, [f"optimizer {names}: resharded; random generators start afresh"]


def _obstacle(flags: ConvertFlags, source: TorchSource | DistSource, merges: bool) -> str:
    if not source.states or "step" not in source.common.get("optimizer", {}):
        return "as another program stored it"
    if flags.params_dtype is not None:
        return "with --params-dtype"
    return "with an adapter that is merged" if merges else ""
