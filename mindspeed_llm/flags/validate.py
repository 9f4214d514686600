"""Validation: flags among themselves, then with the number of processes and the model shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mindspeed.errors import UserError
from mindspeed_llm.console import say
from mindspeed_llm.flags.checks import faults
from mindspeed_llm.flags.config import Config
from mindspeed_llm.flags.experts import expert_faults
from mindspeed_llm.flags.settle import settle
from mindspeed_llm.launch import is_rank


@dataclass(frozen=True)
class Derived:
    """What follows from the flags, the number of processes and the model shape.

    Attributes:
        world_size: number of processes.
        data_parallel_size: world size / (TP x PP).
        virtual_pipeline_model_parallel_size: model chunks per stage; None without interleaving.
        global_batch_size: samples of an iteration (after a ramp-up).
        num_microbatches: forward passes of one data-parallel rank in an iteration.
        params_dtype: ``bf16``, ``fp16`` or ``fp32``.
    """

    world_size: int
    data_parallel_size: int
    virtual_pipeline_model_parallel_size: int | None
    global_batch_size: int
    num_microbatches: int
    params_dtype: str


def _raise(problems: list[str]) -> None:
    if len(problems) == 1:
        raise UserError(problems[0])
    if problems:
        raise UserError("these do not go together:\n  " + "\n  ".join(problems))


def check_flags(config: Config) -> Config:
    """Check the flags among themselves, and apply what some imply for others.

    Raises:
        UserError: listing every fault.
    """
    _raise(faults(config))
    settled, notes = settle(config)
    if config.parallel.nproc is None or is_rank():
        # With --nproc this process only starts the ranks, and rank 0 will say it.
        for note in notes:
            say(note)
    return settled


def validate(config: Config, world_size: int) -> Derived:
    """Check what depends on the number of processes or the model shape.

    Shape flags that are still None are not checked: call it once the shape is resolved (fill it
    in with :meth:`Config.replace`), or before that for the process layout alone.

    Raises:
        UserError: listing every fault.
    """
    parallel, training = config.parallel, config.training
    model_parallel = parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size
    if world_size % model_parallel:
        raise UserError(
            f"{world_size} processes do not divide by tensor x pipeline parallel "
            f"{parallel.tensor_model_parallel_size} x {parallel.pipeline_model_parallel_size} = "
            f"{model_parallel}; start a multiple of {model_parallel} processes "
            "(torchrun --nproc_per_node, or --nproc), or change the two sizes"
        )
    data_parallel = world_size // model_parallel
    chunks = _chunks(config)
    problems = [
        *_shape_faults(config),
        *_sequence_faults(config),
        *expert_faults(config, world_size),
    ]
    if config.trains:
        problems += _batch_faults(config, data_parallel, interleaved=chunks is not None)
        problems += _recompute_faults(config, chunks or 1)
    _raise(problems)
    per_pass = training.micro_batch_size * data_parallel
    global_batch = training.global_batch_size or per_pass
    return Derived(
        world_size=world_size,
        data_parallel_size=data_parallel,
        virtual_pipeline_model_parallel_size=chunks,
        global_batch_size=global_batch,
        num_microbatches=global_batch // per_pass,
        params_dtype=config.params_dtype,
    )


def _chunks(config: Config) -> int | None:
    """Model chunks per stage, None for one; an impossible layout raises."""
    from mindspeed_llm.models.layout import PipelineLayout

    parallel, num_layers = config.parallel, config.model.num_layers
    if num_layers is None:
        return None
    noop_layers = parallel.noop_layers or ()
    layout = PipelineLayout.build(
        num_layers - len(noop_layers),
        parallel.pipeline_model_parallel_size,
        parallel.num_layers_per_virtual_pipeline_stage,
        parallel.num_layer_list,
        noop_layers,
    )
    return layout.chunks if layout.chunks > 1 else None


def _shape_faults(config: Config) -> Iterator[str]:
    model, tensor = config.model, config.parallel.tensor_model_parallel_size
    heads, hidden, groups = model.num_attention_heads, model.hidden_size, model.num_query_groups
    for name, size in (
        ("--ffn-hidden-size", model.ffn_hidden_size),
        ("--padded-vocab-size", model.padded_vocab_size),
    ):
        if size is not None and size % tensor:
            yield f"{name} {size} does not divide by --tensor-model-parallel-size {tensor}"
    if heads and hidden and model.kv_channels is None and hidden % heads:
        yield (
            f"--hidden-size {hidden} does not divide by --num-attention-heads {heads}; "
            "give the head size with --kv-channels"
        )
    # Heads and groups need not divide over TP: the model fills up with groups that compute nothing.
    if heads and groups and model.group_query_attention and heads % groups:
        yield f"--num-attention-heads {heads} does not divide by --num-query-groups {groups}"
    if model.padded_vocab_size and model.vocab_size and model.padded_vocab_size < model.vocab_size:
        yield (
            f"--padded-vocab-size {model.padded_vocab_size} is below --vocab-size "
            f"{model.vocab_size}"
        )


def _sequence_faults(config: Config) -> Iterator[str]:
    length, positions = config.training.seq_length, config.model.max_position_embeddings
    tensor = config.parallel.tensor_model_parallel_size
    if length is None:
        return
    if positions is not None and length > positions:
        yield (
            f"--seq-length {length} is above --max-position-embeddings {positions}: the model has "
            "no positions for the rest"
        )
    if config.parallel.sequence_parallel and length % tensor:
        yield (
            f"--seq-length {length} does not divide by --tensor-model-parallel-size {tensor}, "
            "which --sequence-parallel needs"
        )


def _batch_faults(config: Config, data_parallel: int, interleaved: bool) -> Iterator[str]:
    training = config.training
    per_pass = training.micro_batch_size * data_parallel
    total = training.global_batch_size or per_pass
    sizes = {"--global-batch-size": total}
    if training.rampup_batch_size is not None:
        start, increment, _ = training.rampup_batch_size
        sizes["the start of --rampup-batch-size"] = start
        sizes["the increment of --rampup-batch-size"] = increment
    for name, size in sizes.items():
        if size % per_pass:
            yield (
                f"{name} {size} does not divide by --micro-batch-size "
                f"{training.micro_batch_size} x data parallel {data_parallel} = {per_pass}"
            )
    stages = config.parallel.pipeline_model_parallel_size
    passes = min(sizes.values()) // per_pass
    if interleaved and (passes < stages or passes % stages):
        yield (
            f"the interleaved schedule runs micro-batches in groups of {stages} (pipeline "
            f"stages), and an iteration has {passes}; change --global-batch-size or "
            "--micro-batch-size"
        )


def _recompute_faults(config: Config, chunks: int) -> Iterator[str]:
    model, training = config.model, config.training
    count, list_ = training.recompute_num_layers, config.parallel.num_layer_list
    if count is None or model.num_layers is None:
        return
    stages = config.parallel.pipeline_model_parallel_size
    largest = max(list_) if list_ else model.num_layers // (stages * chunks)
    if count > largest:
        yield (
            f"--recompute-num-layers {count} is more than the {largest} layers of a pipeline "
            f"{'chunk' if chunks > 1 else 'stage'}"
        )
