"""Flags of the optimizer, the learning-rate schedule and the weight decay."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, flag
from mindspeed_llm.flags.status import neutral, part_of, unsupported

SCALED = part_of("fp16")


@dataclass(frozen=True)
class OptimizerFlags(Group):
    title = "optimizer and schedule"
    tools = TRAINERS

    optimizer: str = flag(
        "adam",
        "Optimizer.",
        choices=("adam",),
        refused={"sgd": "SGD optimizer", "muon": "Muon optimizer", "dist_muon": "Muon optimizer"},
    )
    optimizer_selection: str = flag(
        "fused_adamw",
        "Which Adam.",
        choices=("fused_adamw", "fused_torch_adamw"),
        effect=neutral("the fastest AdamW of the device is used"),
        refused={"fused_ema_adamw": "EMA AdamW"},
    )
    lr: float | None = flag(None, "Peak learning rate.", at_least=0)
    min_lr: float = flag(0.0, "Floor of the learning rate.", at_least=0)
    lr_decay_style: str = flag(
        "linear",
        "Shape of the decay.",
        choices=("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    )
    lr_decay_iters: int | None = flag(
        None, "Iterations of the decay; --train-iters when left out.", at_least=1
    )
    lr_decay_samples: int | None = flag(
        None, "Samples of the decay, with --train-samples.", at_least=1
    )
    lr_wsd_decay_style: str = flag(
        "exponential",
        "WSD: shape of the final decay.",
        choices=("exponential", "linear", "cosine", "minus_sqrt"),
    )
    lr_wsd_decay_iters: int | None = flag(None, "WSD: iterations of the final decay.", at_least=1)
    lr_wsd_decay_samples: int | None = flag(None, "WSD: samples of the final decay.", at_least=1)
    lr_warmup_fraction: float | None = flag(
        None, "Warm-up as a share of the decay's length.", at_least=0, below=1
    )
    lr_warmup_iters: int = flag(0, "Iterations of linear warm-up.", at_least=0)
    lr_warmup_samples: int = flag(0, "Samples of linear warm-up, with --train-samples.", at_least=0)
    lr_warmup_init: float = flag(0.0, "Learning rate the warm-up starts from.", at_least=0)
    override_opt_param_scheduler: bool = flag(
        False,
        "Resume with the schedule given here, not the one in the checkpoint.",
        spellings=("--override-opt_param-scheduler", "--override-opt-param-scheduler"),
    )
    use_checkpoint_opt_param_scheduler: bool = flag(
        False,
        "Resume with the checkpoint's schedule whatever is given here.",
        spellings=("--use-checkpoint-opt_param-scheduler", "--use-checkpoint-opt-param-scheduler"),
    )
    decoupled_lr: float | None = flag(
        None,
        "Learning rate of the input and output layers.",
        effect=unsupported("decoupled learning rate"),
    )
    decoupled_min_lr: float | None = flag(
        None,
        "Floor of the decoupled learning rate.",
        effect=unsupported("decoupled learning rate"),
    )
    weight_decay: float = flag(0.01, "Weight decay.", at_least=0)
    start_weight_decay: float | None = flag(
        None, "First weight decay where it changes.", at_least=0
    )
    end_weight_decay: float | None = flag(None, "Last weight decay where it changes.", at_least=0)
    weight_decay_incr_style: str = flag(
        "constant", "How the weight decay changes.", choices=("constant", "linear", "cosine")
    )
    apply_wd_to_qk_layernorm: bool = flag(
        False,
        "Decay the query/key norms too.",
        effect=unsupported("weight decay of query/key norms"),
    )
    clip_grad: float = flag(1.0, "Largest gradient norm; 0: no clipping.", at_least=0)
    adam_beta1: float = flag(0.9, "Adam's beta 1.", at_least=0, below=1)
    adam_beta2: float = flag(0.999, "Adam's beta 2.", at_least=0, below=1)
    adam_eps: float = flag(1e-8, "Adam's epsilon.", above=0)
    sgd_momentum: float = flag(0.9, "Momentum of SGD.", effect=part_of("optimizer"))

    # Loss scaling of fp16
    loss_scale: float | None = flag(
        None, "Fixed loss scale; without it the scale adapts.", above=0, effect=SCALED
    )
    initial_loss_scale: float = flag(
        2.0**32, "First loss scale where it adapts.", above=0, effect=SCALED
    )
    min_loss_scale: float = flag(1.0, "Smallest loss scale.", above=0, effect=SCALED)
    loss_scale_window: float = flag(
        1000.0, "Good iterations before the scale grows.", above=0, effect=SCALED
    )
    hysteresis: int = flag(2, "Overflows before the scale shrinks.", at_least=1, effect=SCALED)

    # Memory
    reuse_fp32_param: bool = flag(
        False,
        "Let the bf16 weights share the memory of the fp32 ones.",
        effect=neutral("sharing memory of bf16 and fp32 weights is not active yet"),
    )
    optimizer_cpu_offload: bool = flag(
        False,
        "Keep optimizer state in host memory.",
        effect=neutral("optimizer offload is not active yet"),
    )
    swap_optimizer: bool = flag(
        False,
        "Keep optimizer state in host memory (Ascend).",
        effect=neutral("optimizer swapping is not active yet"),
    )
    quant_states: str | None = flag(
        None, "Low-precision optimizer state.", effect=unsupported("low-precision optimizer state")
    )
    quant_grads: bool = flag(
        False, "Low-precision gradients.", effect=unsupported("low-precision gradients")
    )
