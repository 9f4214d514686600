"""What some flags imply for others: applied once, after parsing, as Megatron does."""

from __future__ import annotations

from dataclasses import replace

from mindspeed_llm.flags.config import Config
from mindspeed_llm.flags.experts import settle_experts

_FORM = {"normalization", "swiglu", "position_embedding_type", "add_bias_linear"}
"""Flags of the model's form, where the defaults here differ from Megatron's."""


def settle(config: Config) -> tuple[Config, list[str]]:
    """Apply what some flags of a model run imply for others, as Megatron does.

    Returns:
        The settled configuration, and a line for each change that a user would not expect.
    """
    if not config.trains and config.tool != "inference":
        return config, []
    model, training = config.model, config.training
    parallel, optimizer, checkpoint = config.parallel, config.optimizer, config.checkpoint
    notes = []
    if checkpoint.load is None and checkpoint.hf_config is None and _FORM - config.given:
        notes.append(
            "a model from flags alone has RMSNorm, a gated SiLU MLP, rotary positions and no "
            "linear biases (Megatron's own defaults, LayerNorm and so on, are not available)"
        )
    if model.rope_scaling_type == "llama3":
        model = replace(model, use_rope_scaling=True)
    if parallel.sequence_parallel and parallel.tensor_model_parallel_size == 1:
        parallel = replace(parallel, sequence_parallel=False)
        notes.append("--sequence-parallel is off: there is one tensor-parallel rank")
    if parallel.num_layers_per_virtual_pipeline_stage is None:
        # Only the interleaved schedule overlaps its messages or aligns its gathers.
        parallel = replace(parallel, overlap_p2p_comm=False, align_param_gather=False)
    if training.recompute_activations:
        training = replace(training, recompute_granularity="selective")
    if training.bf16:
        training = replace(training, accumulate_allreduce_grads_in_fp32=True)
    if (
        training.fp16
        and config.optimizer.loss_scale is None
        and training.check_for_nan_in_loss_and_grad
    ):
        training = replace(training, check_for_nan_in_loss_and_grad=False)
        notes.append("gradients that are not finite lower the fp16 loss scale, they do not stop")
    if training.skip_nan_loss:
        training = replace(training, check_for_nan_in_loss_and_grad=False)
        if training.fp16:
            training = replace(training, skip_nan_loss=False)
            notes.append("--skip-nan-loss: fp16 loss scaling leaves such updates out already")
    data = config.data
    if data.no_pad_to_seq_lengths and not data.variable_seq_lengths:
        data = replace(data, variable_seq_lengths=True)
    interleaved = parallel.num_layers_per_virtual_pipeline_stage is not None
    if interleaved and parallel.pipeline_model_parallel_size == 2 and data.variable_seq_lengths:
        data = replace(data, variable_seq_lengths=False, no_pad_to_seq_lengths=False)
        notes.append(
            "--variable-seq-lengths is off, rows are padded to --seq-length: between two "
            "interleaved stages the messages that tell lengths mix with the others"
        )
    if data.reset_attention_mask and not data.reset_position_ids:
        notes.append(
            "--reset-attention-mask without --reset-position-ids: positions go on over the "
            "samples of a row, which rotary attention does not see"
        )
    moe, expert_notes = settle_experts(config)
    notes += expert_notes
    if optimizer.weight_decay_incr_style == "constant":
        decay = optimizer.weight_decay
        optimizer = replace(optimizer, start_weight_decay=decay, end_weight_decay=decay)
    settled = replace(
        config,
        model=model,
        moe=moe,
        training=training,
        parallel=parallel,
        optimizer=optimizer,
        data=data,
    )
    return settled, notes
