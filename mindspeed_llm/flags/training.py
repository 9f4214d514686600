"""Flags of the training loop: batches, length, precision, recomputation, evaluation, exit."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of, unsupported

EVERYWHERE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TrainingFlags(Group):
    title = "training"
    tools = TRAINERS

    # Batches
    micro_batch_size: int = flag(
        1, "Samples of one forward pass on one data-parallel rank.", at_least=1, tools=EVERYWHERE
    )
    global_batch_size: int | None = flag(
        None, "Samples of one iteration; micro batch x data parallel when left out.", at_least=1
    )
    rampup_batch_size: tuple[int, ...] | None = flag(
        None,
        "Grow the global batch: start size, increment, samples over which to grow "
        "(with --train-samples).",
        nargs=3,
        at_least=0,
    )
    decrease_batch_size_if_needed: bool = flag(
        False,
        "Lower the global batch where it does not divide.",
        effect=unsupported("lowering the batch size by itself"),
    )
    seq_length: int | None = flag(None, "Tokens of one sample.", at_least=1, tools=EVERYWHERE)

    # Length
    train_iters: int | None = flag(None, "Iterations over all runs together.", at_least=0)
    train_samples: int | None = flag(
        None, "Samples over all runs together, instead of --train-iters.", at_least=1
    )
    exit_interval: int | None = flag(
        None, "Save and exit at iterations divisible by this.", at_least=1
    )
    exit_duration_in_mins: int | None = flag(
        None, "Save and exit after this many minutes.", at_least=1
    )
    exit_signal_handler: bool = flag(False, "Save and exit when told to terminate (SIGTERM).")
    iterations_to_skip: tuple[int, ...] = flag(
        (),
        "Iterations whose batch is drawn and not trained on.",
        nargs="+",
        effect=unsupported("skipping iterations"),
    )

    # Evaluation
    eval_iters: int = flag(100, "Iterations of one evaluation; 0: none.", at_least=0)
    eval_interval: int | None = flag(
        None, "Iterations between evaluations; without it, only at the end.", at_least=1
    )
    skip_train: bool = flag(
        False, "Only evaluate.", effect=unsupported("evaluation without training")
    )

    # Randomness
    seed: int = flag(1234, "Random seed.", at_least=1, tools=EVERYWHERE)
    data_parallel_random_init: bool = flag(
        False,
        "Different new weights on each data-parallel rank.",
        effect=unsupported("data-parallel random initialisation"),
    )
    use_cpu_initialization: bool = flag(
        False,
        "Initialise weights on the CPU, the same for every tensor-parallel size.",
        effect=unsupported("initialisation on the CPU"),
    )
    init_method_xavier_uniform: bool = flag(
        False,
        "Xavier uniform initialisation.",
        effect=unsupported("Xavier initialisation"),
    )
    deterministic_mode: bool = flag(
        False,
        "Use only deterministic kernels.",
        spellings=("--deterministic-mode", "--npu-deterministic"),
        deprecated=("--use-deter-comp",),
    )

    # Precision
    bf16: bool = flag(False, "Train in bfloat16 with fp32 master weights.", tools=EVERYWHERE)
    fp16: bool = flag(False, "Train in float16 with loss scaling.", tools=EVERYWHERE)
    fp16_lm_cross_entropy: bool = flag(
        False, "Cross-entropy in fp16.", effect=unsupported("cross-entropy in fp16")
    )
    accumulate_allreduce_grads_in_fp32: bool = flag(
        False, "Accumulate and reduce gradients in fp32 (always so with --bf16)."
    )
    grad_reduce_in_bf16: bool = flag(
        False,
        "Accumulate and reduce gradients in bfloat16.",
        effect=unsupported("gradients in bfloat16"),
    )
    calculate_per_token_loss: bool = flag(
        False, "Average the loss over all tokens of the global batch (always so).", effect=ALWAYS
    )
    check_for_nan_in_loss_and_grad: bool = flag(
        True,
        "Stop on a loss or gradient that is not finite.",
        off=("--no-check-for-nan-in-loss-and-grad",),
    )
    skip_nan_loss: bool = flag(
        False,
        "Leave out, and report, the update of an iteration whose loss or gradient is not finite, "
        "instead of stopping; a run of ten such iterations ends.",
    )
    fp8: str | None = flag(
        None, "8-bit training.", spellings=("--fp8-format",), effect=unsupported("fp8 training")
    )

    # Recomputation
    recompute_granularity: str | None = flag(
        None,
        "Recompute whole layers or parts of them in the backward pass.",
        choices=("full", "selective"),
    )
    recompute_method: str | None = flag(
        None, "Which layers full recomputation takes.", choices=("uniform", "block")
    )
    recompute_num_layers: int | None = flag(
        None,
        "uniform: layers of one recomputed unit; block: recomputed layers of each stage.",
        at_least=1,
    )
    recompute_modules: tuple[str, ...] | None = flag(
        None,
        "Parts that selective recomputation takes (core_attn when left out).",
        nargs="+",
        choices=("core_attn", "mlp", "mla_up_proj", "moe", "shared_experts"),
        refused={
            "layernorm": "recomputation of norms",
            "moe_act": "a grouped product of experts (use moe)",
        },
    )
    recompute_activations: bool = flag(False, "Short for --recompute-granularity selective.")
    distribute_saved_activations: bool = flag(
        False, "Split what full recomputation saves over tensor-parallel ranks."
    )
    recompute_activation_function: bool = flag(
        False,
        "Recompute the activation function.",
        effect=neutral("recomputation of the activation function is not active yet"),
    )
    recompute_activation_function_num_layers: int | None = flag(
        None, "In how many layers.", effect=part_of("recompute_activation_function")
    )
    recompute_norm: bool = flag(
        False, "Recompute norms.", effect=neutral("recomputation of norms is not active yet")
    )
    recompute_norm_num_layers: int | None = flag(
        None, "In how many layers.", effect=part_of("recompute_norm")
    )
    recompute_in_advance: bool = flag(
        False,
        "Recompute before the pipeline needs it.",
        effect=neutral("recomputing in advance is not active yet"),
    )
    recompute_in_bubble: bool = flag(
        False,
        "Recompute in pipeline bubbles.",
        effect=neutral("recomputing in bubbles is not active yet"),
    )
    enable_recompute_layers_per_pp_rank: bool = flag(
        False,
        "Count recomputed layers per stage, not per chunk.",
        effect=neutral("counting recomputed layers per stage is not active yet"),
    )

    # Memory and interpreter
    manual_gc: bool = flag(False, "Collect Python garbage only when told, the same on all ranks.")
    manual_gc_interval: int = flag(
        0, "Iterations between collections with --manual-gc.", at_least=0
    )
    empty_unused_memory_level: int = flag(
        0,
        "Empty the device's memory cache each iteration.",
        choices=(0, 1, 2),
        effect=neutral("emptying the memory cache is not active yet"),
    )
