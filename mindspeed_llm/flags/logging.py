"""Flags of what a run reports, and of profiling."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of

PROFILE = part_of("profile")
TENSORBOARD = part_of("tensorboard_dir")
WANDB = part_of("wandb_project")


@dataclass(frozen=True)
class LoggingFlags(Group):
    title = "logging"
    tools = TRAINERS

    log_interval: int = flag(100, "Iterations between log lines.", at_least=1)
    log_throughput: bool = flag(False, "Also log TFLOP/s per device (always so).", effect=ALWAYS)
    log_params_norm: bool = flag(
        False,
        "Also log the norm of the weights.",
        effect=neutral("the norm of the weights is not logged yet"),
    )
    log_num_zeros_in_grad: bool = flag(False, "Also log the number of zeros in the gradient.")
    log_progress: bool = flag(
        False, "Keep a progress.txt in --save.", effect=neutral("metrics.jsonl holds the progress")
    )
    log_memory_interval: int | None = flag(
        None,
        "Iterations between memory reports.",
        at_least=1,
        effect=neutral("memory is reported once, after the first iterations"),
    )
    timing_log_level: int = flag(
        0,
        "Detail of timers.",
        choices=(0, 1, 2),
        effect=neutral("detailed timers are not active yet"),
    )
    timing_log_option: str = flag(
        "minmax",
        "Form of timers.",
        choices=("max", "minmax", "all"),
        effect=part_of("timing_log_level"),
    )
    logging_level: int | None = flag(
        None,
        "Level of Python's logging (10 debug ... 50 critical).",
        at_least=0,
        effect=neutral("Python's logging is left as it is"),
    )
    async_log_allreduce: bool = flag(
        False,
        "Average the logged loss in the background.",
        effect=neutral("the logged loss is averaged in the foreground"),
    )

    tensorboard_dir: str | None = flag(None, "Folder of TensorBoard events.")
    tensorboard_log_interval: int = flag(
        1, "Iterations between TensorBoard points.", at_least=1, effect=TENSORBOARD
    )
    tensorboard_queue_size: int = flag(
        1000, "Events kept before writing.", at_least=1, effect=TENSORBOARD
    )
    log_timers_to_tensorboard: bool = flag(False, "Also timers.", effect=TENSORBOARD)
    log_loss_scale_to_tensorboard: bool = flag(
        True,
        "Also the loss scale.",
        off=("--no-log-loss-scale-to-tensorboard",),
        effect=TENSORBOARD,
    )
    log_validation_ppl_to_tensorboard: bool = flag(
        False, "Also the perplexity of evaluation.", effect=TENSORBOARD
    )
    log_memory_to_tensorboard: bool = flag(False, "Also memory.", effect=TENSORBOARD)
    log_world_size_to_tensorboard: bool = flag(
        False, "Also the number of processes.", effect=TENSORBOARD
    )

    wandb_project: str | None = flag(
        None,
        "Weights & Biases project.",
        effect=neutral("Weights & Biases is not connected yet; use --tensorboard-dir"),
    )
    wandb_exp_name: str | None = flag(None, "Its run.", effect=WANDB)
    wandb_entity: str | None = flag(None, "Its team.", effect=WANDB)
    wandb_save_dir: str | None = flag(None, "Its local folder.", effect=WANDB)

    profile: bool = flag(
        False, "Profile some iterations.", effect=neutral("profiling is not active yet")
    )
    profile_step_start: int = flag(10, "First profiled iteration.", effect=PROFILE)
    profile_step_end: int = flag(12, "Iteration after the last profiled one.", effect=PROFILE)
    use_pytorch_profiler: bool = flag(False, "Use torch's profiler.", effect=PROFILE)
    profile_ranks: tuple[int, ...] = flag((0,), "Profiled ranks.", nargs="+", effect=PROFILE)
    profile_level: str = flag("level0", "Detail of the profile.", effect=PROFILE)
    profile_export_type: str = flag(
        "text", "Form of the profile.", choices=("text", "db"), effect=PROFILE
    )
    profile_with_cpu: bool = flag(False, "Include the host.", effect=PROFILE)
    profile_with_stack: bool = flag(False, "Include call stacks.", effect=PROFILE)
    profile_with_memory: bool = flag(False, "Include memory.", effect=PROFILE)
    profile_record_shapes: bool = flag(False, "Include shapes.", effect=PROFILE)
    profile_save_path: str = flag("./profile_dir", "Folder of profiles.", effect=PROFILE)
    profile_data_simplification: bool = flag(False, "Delete raw profiles.", effect=PROFILE)
