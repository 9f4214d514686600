"""Flags of saving, loading and resuming, and of reading weights in Hugging Face form."""

from __future__ import annotations

from dataclasses import dataclass

from mindspeed_llm.flags.core import TRAINERS, Group, flag
from mindspeed_llm.flags.status import ALWAYS, neutral, part_of, unsupported

LORA = "LoRA"


@dataclass(frozen=True)
class CheckpointFlags(Group):
    title = "checkpoint"

    # Load
    load: str | None = flag(None, "Folder to load: a Megatron checkpoint, or Hugging Face weights.")
    pretrained_checkpoint: str | None = flag(
        None,
        "Folder of weights to start from while --load holds nothing yet.",
        effect=unsupported("a second folder to start from (use --load, and --auto-resume)"),
        tools=TRAINERS,
    )
    ckpt_step: int | None = flag(None, "Iteration to load instead of the latest.", at_least=0)
    auto_resume: bool = flag(
        False,
        "Continue from --save when it holds a newer checkpoint than --load.",
        tools=TRAINERS,
    )
    finetune: bool = flag(False, "Load weights only and start at iteration 0.", tools=TRAINERS)
    no_load_optim: bool = flag(False, "Do not load the optimizer state.")
    no_load_rng: bool = flag(False, "Do not load the random state.")
    exit_on_missing_checkpoint: bool = flag(
        False, "A --load folder without a checkpoint is an error (always so).", effect=ALWAYS
    )
    use_checkpoint_args: bool = flag(
        False, "Take the model shape from the checkpoint (always so).", effect=ALWAYS
    )
    load_checkpoint_loosely: bool = flag(
        False,
        "Accept missing weights.",
        effect=unsupported("loading a checkpoint with weights missing"),
    )

    # Hugging Face
    hf_config: str | None = flag(
        None, "Hugging Face folder (or config.json) that supplies the model shape."
    )
    model_type_hf: str | None = flag(
        None, "Model family, e.g. llama, qwen25, qwen3; from config.json when left out."
    )
    enable_hf2mg_convert: bool = flag(
        False, "--load is a Hugging Face folder; its weights go straight into the model."
    )
    enable_mg2hf_convert: bool = flag(
        False, "Also write a Hugging Face folder at each save.", tools=TRAINERS
    )
    only_convert_last_checkpoint: bool = flag(
        False, "Only after the last save.", effect=part_of("enable_mg2hf_convert")
    )
    hf_save_dir: str | None = flag(
        None,
        "Where these folders go instead of --save, as mg2hf_iteration{N}.",
        effect=part_of("enable_mg2hf_convert"),
    )
    hf_cfg_dir: str | None = flag(
        None, "Folder of the original config.json.", effect=part_of("enable_mg2hf_convert")
    )
    mg_save_dir: str | None = flag(
        None,
        "Cache of converted weights.",
        effect=neutral("Hugging Face weights are loaded directly, without a cache"),
    )

    # Save
    save: str | None = flag(None, "Folder to save into.", tools=TRAINERS)
    save_interval: int | None = flag(
        None,
        "Iterations between saves.",
        spellings=("--save-interval", "--persistent-save-interval"),
        at_least=1,
        tools=TRAINERS,
    )
    save_retain_interval: int | None = flag(
        None,
        "Keep only checkpoints at multiples of this, and the latest.",
        at_least=1,
        tools=TRAINERS,
    )
    no_save_optim: bool = flag(False, "Do not save the optimizer state.", tools=TRAINERS)
    no_save_rng: bool = flag(False, "Do not save the random state.", tools=TRAINERS)
    ckpt_format: str = flag(
        "torch_dist",
        "torch: a file per model-parallel rank; torch_dist: loads at any layout.",
        choices=("torch", "torch_dist"),
        refused={
            "torch_dcp": "FSDP2 checkpoints",
            "fsdp_dtensor": "Megatron FSDP checkpoints",
            "zarr": "zarr checkpoints",
        },
    )
    async_save: bool = flag(
        False,
        "Write checkpoints in the background.",
        effect=neutral("checkpoints are written in the foreground"),
        tools=TRAINERS,
    )
    use_persistent_ckpt_worker: bool = flag(
        False, "Keep that background process.", effect=part_of("async_save")
    )
    use_dist_ckpt: bool = flag(
        False,
        "Older spelling of --ckpt-format torch_dist.",
        effect=neutral("--ckpt-format chooses the format"),
        tools=TRAINERS,
    )
    dist_ckpt_format: str | None = flag(
        None,
        "Older choice of the format.",
        effect=neutral("--ckpt-format chooses the format"),
        tools=TRAINERS,
    )
    auto_detect_ckpt_format: bool = flag(
        False,
        "Find out the format when loading (always so).",
        effect=ALWAYS,
    )
    ckpt_fully_parallel_save: bool = flag(
        True,
        "Split saving over data-parallel ranks (torch_dist).",
        spellings=("--ckpt-fully-parallel-save",),
        off=("--no-ckpt-fully-parallel-save",),
        effect=neutral("how ranks share the writing is chosen by the format"),
        tools=TRAINERS,
    )
    ckpt_fully_parallel_load: bool = flag(
        False,
        "Split loading over data-parallel ranks (torch_dist).",
        effect=neutral("loading is not split yet"),
        tools=TRAINERS,
    )
    ckpt_assume_constant_structure: bool = flag(
        False,
        "Plan saves once (torch_dist).",
        effect=neutral("each save is planned anew"),
        tools=TRAINERS,
    )
    non_persistent_save_interval: int | None = flag(
        None,
        "Iterations between temporary checkpoints.",
        effect=unsupported("temporary checkpoints"),
        tools=TRAINERS,
    )
    non_persistent_ckpt_type: str | None = flag(
        None,
        "Kind of temporary checkpoints.",
        choices=("global", "local", "in_memory"),
        effect=part_of("non_persistent_save_interval"),
    )

    # Adapters
    lora_target_modules: tuple[str, ...] = flag(
        (), "Layers that get an adapter.", nargs="+", effect=unsupported(LORA)
    )
    lora_load: str | None = flag(None, "Folder of adapters.", effect=unsupported(LORA))
    lora_r: int = flag(16, "Rank of adapters.", effect=part_of("lora_target_modules"))
    lora_alpha: int = flag(32, "Scale of adapters.", effect=part_of("lora_target_modules"))
    lora_fusion: bool = flag(
        False, "Overlap adapters with communication.", effect=part_of("lora_target_modules")
    )
