"""A resolved model as Megatron modules on this rank, with its weights: for every command alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import mindspeed.megatron_adaptor  # noqa: F401  (before megatron.core is used)
from mindspeed.device import get_device
from mindspeed.errors import UserError
from mindspeed_llm.checkpoint.metadata import DTYPES
from mindspeed_llm.models.builder import build_model, import_layer_spec, transformer_config
from mindspeed_llm.models.layout import PipelineLayout

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

    from mindspeed_llm.distributed import Position
    from mindspeed_llm.flags import Config
    from mindspeed_llm.model_source import ResolvedModel
    from mindspeed_llm.models.gpt import GPTModel


def params_dtype(cfg: Config) -> torch.dtype:
    """The dtype that the model computes in."""
    return DTYPES[cfg.params_dtype]


def model_options(cfg: Config, layout: PipelineLayout) -> dict[str, Any]:
    """Fields of ``TransformerConfig`` that are about the run, not about the architecture."""
    model, training, parallel, moe = cfg.model, cfg.training, cfg.parallel, cfg.moe
    interleaved = layout.chunks > 1
    return {
        "tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "sequence_parallel": sequence_parallel(cfg),
        "expert_model_parallel_size": moe.expert_model_parallel_size,
        "expert_tensor_parallel_size": (
            moe.expert_tensor_parallel_size or parallel.tensor_model_parallel_size
        ),
        # Of dense models too, Megatron asks which dispatcher they do not have.
        "moe_token_dispatcher_type": (
            moe.moe_token_dispatcher_type if moe.num_experts else "alltoall"
        ),
        "moe_router_load_balancing_type": moe.moe_router_load_balancing_type,
        "moe_aux_loss_coeff": moe.moe_aux_loss_coeff,
        "moe_z_loss_coeff": moe.moe_z_loss_coeff,
        "moe_router_bias_update_rate": moe.moe_router_bias_update_rate,
        "moe_router_dtype": moe.moe_router_dtype,
        "attention_dropout": model.attention_dropout,
        "hidden_dropout": model.hidden_dropout,
        "init_method_std": model.init_method_std,
        "attention_softmax_in_fp32": model.attention_softmax_in_fp32,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "bias_activation_fusion": True,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": cfg.ops.gradient_accumulation_fusion,
        "mtp_loss_scaling_factor": model.mtp_loss_scaling_factor,
        **_recomputation(cfg),
        "distribute_saved_activations": training.distribute_saved_activations,
        "deterministic_mode": training.deterministic_mode,
        # Loss and gradients are sums over tokens until the end of the batch, then divided by
        # the number of tokens in the global batch: no mean of means.
        "calculate_per_token_loss": True,
        # Between the same two ranks (PP=2) the messages of two chunks must not mix. Batched ones
        # do everywhere; overlapped ones on gloo, which pairs messages by their order alone.
        "batch_p2p_comm": not interleaved,
        "overlap_p2p_comm": (
            interleaved and cfg.parallel.overlap_p2p_comm and get_device().name != "cpu"
        ),
        "deallocate_pipeline_outputs": True,
        "variable_seq_lengths": cfg.data.variable_seq_lengths and layout.pipeline_parallel > 1,
    }


def _recomputation(cfg: Config) -> dict[str, Any]:
    """What is computed again in the backward pass instead of being kept."""
    training = cfg.training
    granularity = training.recompute_granularity
    modules = list(training.recompute_modules or ["core_attn"])
    if "mla_up_proj" in modules and not cfg.moe.multi_latent_attention:
        raise UserError(
            "--recompute-modules mla_up_proj: the model has no multi-head latent attention; leave "
            "it out"
        )
    if cfg.moe.mla_zero_memory and cfg.moe.multi_latent_attention and granularity != "full":
        modules = ["mla_up_proj", *(modules if granularity else ())]
        granularity = "selective"
    return {
        "recompute_granularity": granularity,
        "recompute_method": training.recompute_method,
        "recompute_num_layers": training.recompute_num_layers,
        "recompute_modules": modules,
    }


def sequence_parallel(cfg: Config) -> bool:
    """Sequence parallelism needs something to be parallel over."""
    return cfg.parallel.sequence_parallel and cfg.parallel.tensor_model_parallel_size > 1


@dataclass(frozen=True)
class LiveModel:
    """This rank's part of a model.

    Attributes:
        chunks: one module per virtual pipeline stage, on the device.
        loaded: a line on where the weights came from; "" for new ones.
    """

    config: TransformerConfig
    layout: PipelineLayout
    padded_vocab_size: int
    chunks: list[GPTModel]
    loaded: str


def build_live_model(
    cfg: Config, model: ResolvedModel, position: Position, *, load_weights: bool, **changes: Any
) -> LiveModel:
    """Build this rank's chunks and fill them from ``model.source``.

    Args:
        load_weights: False leaves the new model's random weights.
        changes: fields of the transformer config that the caller knows better than the flags.
    """
    layout, padded = model.layout(cfg), model.padded_vocab(cfg)
    options = model_options(cfg, layout) | changes
    config = transformer_config(model.shape, layout, params_dtype(cfg), **options)
    spec = import_layer_spec(*cfg.model.spec) if cfg.model.spec else model.family.layer_spec
    chunks = build_model(model.shape, config, layout, spec, padded)
    loaded = ""
    if load_weights and model.source is not None:
        from mindspeed_llm.checkpoint.live import load_into

        at = position.tensor_parallel(model.shape, padded)
        loaded = load_into(chunks, model.source, layout, position.pipeline, at)
    for chunk in chunks:
        chunk.to(position.device.torch_device())
    return LiveModel(config, layout, padded, chunks, loaded)
