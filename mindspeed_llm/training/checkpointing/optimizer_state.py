"""Adam's state parameter by parameter, whatever form Megatron's optimizer keeps it in.

Each state (the fp32 master copy ``param``, ``exp_avg``, ``exp_avg_sq``) is of its parameter's
size, so it is stored and resharded as a weight is. Hyperparameters are not stored: flags and
schedule set them. What remains is the number of steps and the loss scaler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer
from torch import Tensor, nn

from mindspeed.features.distributed_optimizer import create_adam_state

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "param"

States = dict[str, Tensor]
"""By name of the state, each of the parameter's size on this rank."""


def gathered(optimizer: MegatronOptimizer) -> Iterator[tuple[nn.Parameter, States]]:
    """Every parameter whose state this rank stores, with its state on the CPU; a collective.

    Of data-parallel copies the first one stores; experts and other layers have copies of their
    own each.
    """
    for part in _parts(optimizer):
        # There is none yet if every step so far was skipped.
        create_adam_state(part.optimizer)
        if isinstance(part, DistributedOptimizer):
            yield from _gathered_shards(part)
        elif _is_first_copy(part):
            for parameter, main in _mains(part):
                state = part.optimizer.state[main]
                states = {name: state[name].cpu() for name in MOMENTS}
                yield parameter, states | ({} if main is parameter else {MASTER: main.cpu()})


def held(optimizer: MegatronOptimizer) -> Iterator[nn.Parameter]:
    """Every parameter of which this rank keeps state, all of it or a data-parallel share."""
    for part in _parts(optimizer):
        if isinstance(part, DistributedOptimizer):
            yield from part.model_param_group_index_map
        else:
            yield from (parameter for parameter, _ in _mains(part))


def restore(
    optimizer: MegatronOptimizer, common: dict[str, Any], read: Callable[[nn.Parameter], States]
) -> None:
    """Put back what :func:`gathered` and :func:`common_state` told.

    Args:
        read: the states of a parameter, of its size on this rank; without ``param`` the master
            copy is taken from the weights, which are there already.
    """
    optimizer.reload_model_params()
    for part in _parts(optimizer):
        create_adam_state(part.optimizer)
        for state in part.optimizer.state.values():
            state["step"] = torch.full_like(state["step"], common["step"])
        scaler = _scaler(part)
        if common.get("grad_scaler") and scaler is not None:
            scaler.load_state_dict(common["grad_scaler"])
        with torch.no_grad():
            if isinstance(part, DistributedOptimizer):
                for parameter in part.model_param_group_index_map:
                    _set_shard(part, parameter, read(parameter))
                continue
            for parameter, main in _mains(part):
                states = read(parameter)
                for name in MOMENTS:
                    part.optimizer.state[main][name].copy_(states[name])
                if MASTER in states:
                    main.copy_(states[MASTER])


def common_state(optimizer: MegatronOptimizer) -> dict[str, Any]:
    """The number of steps, and the loss scaler's state if there is one."""
    states = (s for part in _parts(optimizer) for s in part.optimizer.state.values())
    scalers = (_scaler(part) for part in _parts(optimizer))
    scaler = next((found for found in scalers if found is not None), None)
    return {
        "step": next((int(state["step"]) for state in states), 0),
        "grad_scaler": None if scaler is None else scaler.state_dict(),
    }


def _scaler(part: Any) -> Any:
    """The scaler of the loss; None in fp32 and bf16."""
    return getattr(part, "grad_scaler", None)


def _parts(optimizer: MegatronOptimizer) -> list[Any]:
    """Experts that are spread over ranks have an optimizer beside that of the other layers."""
    if isinstance(optimizer, ChainedOptimizer):
        return optimizer.chained_optimizers
    return [optimizer]


def _mains(part: Any) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """(model parameter, what the optimizer updates): itself, or its fp32 master copy."""
    if not hasattr(part, "float16_groups"):
        yield from ((parameter, parameter) for parameter in part.get_parameters())
        return
    for parameters, mains in zip(part.float16_groups, part.fp32_from_float16_groups, strict=True):
        yield from zip(parameters, mains, strict=True)
    for parameters in part.fp32_from_fp32_groups:
        yield from ((parameter, parameter) for parameter in parameters)


def _is_first_copy(part: Any) -> bool:
    parameters = part.get_parameters()
    # Megatron's mark of parameters that not all data-parallel ranks share.
    of_experts = any(not getattr(parameter, "allreduce", True) for parameter in parameters)
    if of_experts:
        return parallel_state.get_expert_data_parallel_rank() == 0
    return parallel_state.get_data_parallel_rank() == 0


def _gathered_shards(part: DistributedOptimizer) -> Iterator[tuple[nn.Parameter, States]]:
    buffers = part.get_parameter_state_dp_zero(use_gloo_comm=True)
    if part.data_parallel_group.rank() != 0:
        return
    for number, ranges in enumerate(part.gbuf_ranges):
        for dtype in ranges:
            flat = buffers[number][dtype]
            for parameter, (start, end, _) in part.buffers[number].param_index_map.items():
                names = (*MOMENTS, *([MASTER] if parameter.dtype != torch.float32 else []))
                yield parameter, {n: flat[n][start:end].view(parameter.shape) for n in names}


def _set_shard(part: DistributedOptimizer, parameter: nn.Parameter, states: States) -> None:
    """Of a parameter's states, put back what this data-parallel rank holds."""
    shard = part._get_model_param_range_map(parameter)["param"]
    values = dict(part._get_main_param_and_optimizer_states(parameter))
    values.pop("step", None)
    for name, state in states.items():
        values[name] = state.reshape(-1)[shard.start : shard.end]
    part._set_main_param_and_optimizer_states(parameter, values)
