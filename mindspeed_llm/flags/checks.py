"""Cross-flag rules that need neither the number of processes nor the model shape.

Each rule yields a sentence per fault; :func:`mindspeed_llm.flags.validate.check_flags` collects
them all into one error. They forbid what Megatron's own argument checks forbid (those are not in
the ``megatron-core`` package), for the features that exist here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mindspeed_llm.flags.config import Config, group_specs
from mindspeed_llm.flags.data_checks import data_faults
from mindspeed_llm.flags.posttrain import posttrain_faults

Rule = Callable[[Config], Iterator[str]]


def _required(config: Config) -> Iterator[str]:
    needed = {
        "preprocess": ("input", "output_prefix"),
        "convert": ("load_dir", "save_dir"),
        "convert_v1": ("load_dir", "save_dir"),
        "pretrain": ("seq_length", "lr"),
        "posttrain": ("seq_length", "lr"),
        "inference": (),
    }[config.tool]
    for dest in needed:
        if config.value(dest) is None:
            yield f"--{dest.replace('_', '-')} is required"


def _tokenizer(config: Config) -> Iterator[str]:
    flags = config.tokenizer
    kind = flags.tokenizer_type
    if config.preprocess.merge_group_keys:
        return
    if kind == "NullTokenizer":
        if config.tool == "preprocess":
            yield "--tokenizer-type NullTokenizer cannot tokenize text; use PretrainedFromHF"
        elif config.model.vocab_size is None:
            yield "--tokenizer-type NullTokenizer needs --vocab-size"
    elif (config.tool == "preprocess" or kind is not None) and not (
        flags.tokenizer_name_or_path or flags.tokenizer_model
    ):
        yield "--tokenizer-name-or-path is required: the folder with tokenizer.json"


def _precision(config: Config) -> Iterator[str]:
    flags = config.training
    if flags.bf16 and flags.fp16:
        yield "--bf16 and --fp16 exclude each other"


def _length(config: Config) -> Iterator[str]:
    training, schedule = config.training, config.optimizer
    if training.train_iters is not None and training.train_samples is not None:
        yield "--train-iters and --train-samples exclude each other"
    elif training.train_iters is None and training.train_samples is None:
        yield "--train-iters or --train-samples is required"
    elif training.train_samples is None:
        clash = {
            "--lr-decay-samples": schedule.lr_decay_samples,
            "--lr-wsd-decay-samples": schedule.lr_wsd_decay_samples,
            "--lr-warmup-samples": schedule.lr_warmup_samples,
            "--rampup-batch-size": training.rampup_batch_size,
        }
        for name, value in clash.items():
            if value:
                yield f"{name} goes with --train-samples, not with --train-iters"
    else:
        clash = {
            "--lr-decay-iters": schedule.lr_decay_iters,
            "--lr-wsd-decay-iters": schedule.lr_wsd_decay_iters,
            "--lr-warmup-iters": schedule.lr_warmup_iters,
        }
        for name, value in clash.items():
            if value:
                yield f"{name} goes with --train-iters, not with --train-samples"


def _rampup(config: Config) -> Iterator[str]:
    training = config.training
    if training.rampup_batch_size is None:
        return
    start, increment, _ = training.rampup_batch_size
    if start < 1 or increment < 1:
        yield "--rampup-batch-size: start size and increment must be at least 1"
        return
    if training.global_batch_size is None:
        yield "--rampup-batch-size needs --global-batch-size"
        return
    grows = training.global_batch_size - start
    if grows <= 0 or grows % increment:
        yield (
            f"--rampup-batch-size: from {start} in steps of {increment} does not reach "
            f"--global-batch-size {training.global_batch_size}"
        )


def _schedule(config: Config) -> Iterator[str]:
    flags = config.optimizer
    if flags.lr is not None and flags.min_lr > flags.lr:
        yield f"--min-lr {flags.min_lr:g} is above --lr {flags.lr:g}"
    if flags.lr is not None and flags.lr_warmup_init > flags.lr:
        yield f"--lr-warmup-init {flags.lr_warmup_init:g} is above --lr {flags.lr:g}"
    if flags.lr_warmup_fraction is not None:
        for dest in ("lr_warmup_iters", "lr_warmup_samples"):
            if getattr(flags, dest):
                yield f"--lr-warmup-fraction and --{dest.replace('_', '-')} exclude each other"
    yield from _warm_up_fits(config)
    if flags.lr_decay_style == "WSD":
        by_samples = config.training.train_samples is not None
        unit = "samples" if by_samples else "iters"
        if getattr(flags, f"lr_wsd_decay_{unit}") is None:
            yield f"--lr-decay-style WSD needs --lr-wsd-decay-{unit}"
    if flags.override_opt_param_scheduler and flags.use_checkpoint_opt_param_scheduler:
        yield (
            "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler exclude "
            "each other"
        )


def _warm_up_fits(config: Config) -> Iterator[str]:
    flags, training = config.optimizer, config.training
    for unit, total in (("iters", training.train_iters), ("samples", training.train_samples)):
        decay = getattr(flags, f"lr_decay_{unit}") or total
        warm_up = getattr(flags, f"lr_warmup_{unit}")
        if decay and warm_up >= decay:
            yield (
                f"--lr-warmup-{unit} {warm_up} is not shorter than the decay of {decay} "
                f"(--lr-decay-{unit}, or --train-{unit})"
            )
        annealing = getattr(flags, f"lr_wsd_decay_{unit}")
        if decay and annealing and annealing > decay:
            yield f"--lr-wsd-decay-{unit} {annealing} is longer than the decay of {decay}"


def _weight_decay(config: Config) -> Iterator[str]:
    flags = config.optimizer
    ends = {"--start-weight-decay": flags.start_weight_decay}
    ends["--end-weight-decay"] = flags.end_weight_decay
    if flags.weight_decay_incr_style == "constant":
        for name, value in ends.items():
            if value is not None:
                yield f"{name} needs --weight-decay-incr-style linear or cosine"
        return
    for name, value in ends.items():
        if value is None:
            yield f"--weight-decay-incr-style {flags.weight_decay_incr_style} needs {name}"
    if None not in ends.values():
        assert flags.start_weight_decay is not None and flags.end_weight_decay is not None
        if flags.end_weight_decay < flags.start_weight_decay:
            yield "--end-weight-decay is below --start-weight-decay; it can only grow"


def _recomputation(config: Config) -> Iterator[str]:
    flags = config.training
    if flags.recompute_activations and flags.recompute_granularity == "full":
        yield "--recompute-activations means selective; leave it out with granularity full"
    granularity = "selective" if flags.recompute_activations else flags.recompute_granularity
    details = {
        "--recompute-method": flags.recompute_method,
        "--recompute-num-layers": flags.recompute_num_layers,
    }
    for name, value in details.items():
        if granularity == "full" and value is None:
            yield f"--recompute-granularity full needs {name}"
        if granularity != "full" and value is not None:
            yield f"{name} needs --recompute-granularity full"
    if flags.recompute_modules is not None and granularity != "selective":
        yield "--recompute-modules needs --recompute-granularity selective"
    if flags.distribute_saved_activations:
        if granularity != "full":
            yield "--distribute-saved-activations needs --recompute-granularity full"
        if config.parallel.tensor_model_parallel_size == 1:
            yield "--distribute-saved-activations needs --tensor-model-parallel-size above 1"
        elif config.parallel.sequence_parallel:
            yield "--distribute-saved-activations and --sequence-parallel exclude each other"


def _overlap(config: Config) -> Iterator[str]:
    flags = config.parallel
    if flags.overlap_param_gather and not flags.use_distributed_optimizer:
        yield "--overlap-param-gather needs --use-distributed-optimizer"
    if flags.overlap_param_gather and not flags.overlap_grad_reduce:
        yield "--overlap-param-gather needs --overlap-grad-reduce"


def _pipeline(config: Config) -> Iterator[str]:
    flags = config.parallel
    stages = flags.pipeline_model_parallel_size
    if flags.num_layers_per_virtual_pipeline_stage is not None:
        if stages == 1:
            yield (
                "--num-layers-per-virtual-pipeline-stage needs --pipeline-model-parallel-size "
                "above 1"
            )
        elif stages == 2 and not flags.overlap_p2p_comm:
            yield (
                "--no-overlap-p2p-communication with an interleaved schedule needs more than 2 "
                "pipeline stages (as in Megatron); leave the flag out"
            )
        if flags.num_layer_list is not None:
            yield (
                "--num-layer-list and --num-layers-per-virtual-pipeline-stage exclude each other: "
                "the list gives the layers of whole stages"
            )


def _save(config: Config) -> Iterator[str]:
    flags = config.checkpoint
    if flags.save is not None and flags.save_interval is None:
        yield "--save needs --save-interval"
    if flags.save_interval is not None and flags.save is None and config.trains:
        yield "--save-interval needs --save"
    if flags.save_retain_interval is not None:
        if flags.save_interval is None:
            yield "--save-retain-interval needs --save-interval"
        elif flags.save_retain_interval % flags.save_interval:
            yield (
                f"--save-retain-interval {flags.save_retain_interval} is not a multiple of "
                f"--save-interval {flags.save_interval}"
            )
    if flags.auto_resume and flags.save is None:
        yield "--auto-resume needs --save"
    if flags.enable_hf2mg_convert and flags.load is None:
        yield "--enable-hf2mg-convert needs --load: the folder of Hugging Face weights"
    if flags.enable_mg2hf_convert and flags.save is None:
        yield "--enable-mg2hf-convert needs --save: the checkpoints that are converted"


def _model(config: Config) -> Iterator[str]:
    flags, checkpoint = config.model, config.checkpoint
    if checkpoint.load is None:
        if checkpoint.ckpt_step is not None:
            yield "--ckpt-step needs --load"
        alone = flags.num_query_groups is not None and not flags.group_query_attention
        if alone and checkpoint.hf_config is None:
            yield "--num-query-groups needs --group-query-attention"
    low, high = flags.low_freq_factor, flags.high_freq_factor
    if low is not None and high is not None and high <= low:
        yield f"--high-freq-factor {high:g} must be above --low-freq-factor {low:g}"


def _sampling(config: Config) -> Iterator[str]:
    tasks = config.inference.task or ()
    if len(tasks) > 1:
        yield f"--task takes one of greedy and do_sample, not {' '.join(tasks)}"
    if "greedy" in tasks:
        for dest in ("temperature", "top_k", "top_p"):
            if dest in config.given:
                yield f"--task greedy and --{dest.replace('_', '-')} contradict each other"
    if config.parallel.num_layers_per_virtual_pipeline_stage is not None:
        yield "--num-layers-per-virtual-pipeline-stage: generation does not interleave stages"


def _adapter(config: Config) -> Iterator[str]:
    flags = config.lora
    if flags.save_lora_to_hf and flags.save_lora_to_mg:
        yield "--save-lora-to-hf and --save-lora-to-mg exclude each other"
    for kind, wanted in (("hf", flags.save_lora_to_hf), ("mg", flags.save_lora_to_mg)):
        saved = config.convert.save_model_type
        if wanted and "save_model_type" in config.given and saved != kind:
            yield f"--save-lora-to-{kind} and --save-model-type {saved} contradict each other"


def _tuning(config: Config) -> Iterator[str]:
    for spec in group_specs("posttrain"):
        if spec.dest in config.given:
            yield f"{spec.name} is a flag of posttrain_gpt.py (mindspeed-llm posttrain)"


_TRAINING: tuple[Rule, ...] = (
    _required,
    _tokenizer,
    _precision,
    _length,
    _rampup,
    _schedule,
    _weight_decay,
    _recomputation,
    _overlap,
    _pipeline,
    _save,
    data_faults,
    _model,
)
RULES: dict[str, tuple[Rule, ...]] = {
    "preprocess": (_required, _tokenizer),
    "convert": (_required, _adapter),
    "convert_v1": (_required, _adapter),
    "pretrain": (*_TRAINING, _tuning),
    "posttrain": (*_TRAINING, posttrain_faults),
    "inference": (_required, _tokenizer, _precision, _model, _sampling),
}


def faults(config: Config) -> list[str]:
    """All faults of the flags of ``config`` among themselves."""
    return [fault for rule in RULES[config.tool] for fault in rule(config)]
