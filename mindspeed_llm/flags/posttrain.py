"""Flags of tuning: which stage, and the preference loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindspeed_llm.flags.core import Group, flag
from mindspeed_llm.flags.status import neutral

if TYPE_CHECKING:
    from mindspeed_llm.flags.config import Config

REINFORCEMENT = "reinforcement learning"


@dataclass(frozen=True)
class PosttrainFlags(Group):
    title = "tuning"
    tools = frozenset({"posttrain"})

    stage: str | None = flag(
        None,
        "sft: answers are learnt (--is-instruction-dataset); dpo: preferences between two answers "
        "are (--is-pairwise-dataset).",
        choices=("sft", "dpo"),
        refused={
            "ray_ppo": REINFORCEMENT,
            "ray_online_dpo": REINFORCEMENT,
            "ray_grpo": REINFORCEMENT,
        },
    )
    dpo_loss_type: str = flag(
        "sigmoid",
        "sigmoid: of the DPO paper; hinge: of SLiC; ipo: squared distance of the mean log "
        "probability of a token from 1 / (2 beta).",
        choices=("sigmoid", "hinge", "ipo"),
    )
    dpo_beta: float = flag(
        0.1, "How strongly the policy is held to the reference: factor of the rewards.", above=0
    )
    dpo_label_smoothing: float = flag(
        0.0,
        "Share of pairs that are taken to be labelled the wrong way round.",
        at_least=0,
        below=0.5,
    )
    pref_ftx: float = flag(
        0.0, "Weight of the loss of the chosen answers (as in SFT), added to DPO's.", at_least=0
    )
    ref_model: str | None = flag(
        None,
        "Weights of the reference: a Hugging Face folder or a checkpoint; those that the policy "
        "starts from when left out.",
    )
    refer_model_iter: int | None = flag(
        None, "Iteration of --ref-model instead of its latest.", at_least=0
    )
    use_wandb: bool = flag(
        False,
        "Log to Weights & Biases.",
        effect=neutral("Weights & Biases is not connected yet; use --tensorboard-dir"),
    )


PREFERENCE = ("dpo_loss_type", "dpo_beta", "dpo_label_smoothing", "pref_ftx", "ref_model")


def posttrain_faults(config: Config) -> Iterator[str]:
    """Faults of the flags of tuning with the data's and the model's."""
    flags, data = config.posttrain, config.data
    if flags.stage is None:
        yield "--stage is required: sft (learn answers) or dpo (learn preferences)"
        return
    if config.checkpoint.load is None:
        yield f"--stage {flags.stage} needs --load: the model to tune"
    if flags.stage == "sft":
        if data.is_pairwise_dataset:
            yield "--stage sft learns answers; pairs (--is-pairwise-dataset) are for --stage dpo"
        elif not data.is_instruction_dataset:
            yield (
                "--stage sft needs --is-instruction-dataset; running text is trained on by "
                "pretrain_gpt.py (mindspeed-llm pretrain)"
            )
        for dest in (*PREFERENCE, "refer_model_iter"):
            if dest in config.given:
                yield f"--{dest.replace('_', '-')} needs --stage dpo"
        return
    yield from _preference_faults(config)


def _preference_faults(config: Config) -> Iterator[str]:
    flags, data = config.posttrain, config.data
    if data.is_instruction_dataset:
        yield (
            "--stage dpo learns from pairs of answers; --is-instruction-dataset is for --stage sft"
        )
    elif not data.is_pairwise_dataset:
        yield "--stage dpo needs --is-pairwise-dataset"
    if flags.dpo_label_smoothing and flags.dpo_loss_type != "sigmoid":
        yield (
            f"--dpo-label-smoothing has no meaning with --dpo-loss-type {flags.dpo_loss_type}; "
            "leave it out"
        )
    if flags.refer_model_iter is not None and flags.ref_model is None:
        yield "--refer-model-iter needs --ref-model"
    if data.neat_pack or data.reset_attention_mask:
        yield "--neat-pack and --reset-attention-mask: pairs are not packed; leave them out"
