"""What the worker ranks do in the tests of live loading: real Megatron models, built and used.

Results are numpy arrays: tensors do not travel between processes that did not start each other.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mindspeed.errors import UserError
from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.live import load_into
from mindspeed_llm.checkpoint.metadata import CheckpointLayout, checkpoint_args
from mindspeed_llm.checkpoint.source import WeightSource, open_source
from mindspeed_llm.models.layout import PipelineLayout
from mindspeed_llm.models.shape import padded_vocab_size
from mindspeed_llm.models.splits import TensorParallel


def _build(source: WeightSource, tp: int, pp: int, per_chunk: int | None, padded: int | None):
    """(model chunks, pipeline layout, place of this rank) at a layout."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from mindspeed_llm.models.builder import build_model, transformer_config

    layout = PipelineLayout.build(source.shape.num_layers, pp, per_chunk)
    chunks = layout.chunks if layout.chunks > 1 else None
    parallel_state.initialize_model_parallel(tp, pp, chunks)
    model_parallel_cuda_manual_seed(1)
    padded = padded or padded_vocab_size(source.shape.vocab_size, tp)
    config = transformer_config(
        source.shape, layout, torch.float32, tensor_model_parallel_size=tp, batch_p2p_comm=False
    )
    spec = source.family.layer_spec
    models = build_model(source.shape, config, layout, spec, padded)
    rank = parallel_state.get_tensor_model_parallel_rank()
    return models, layout, TensorParallel.of(source.shape, rank, tp, padded)


def load(
    rank: int,
    world: int,
    path: str,
    tp: int,
    pp: int,
    per_chunk: int | None = None,
    padded: int | None = None,
    extra: str | None = None,
) -> Any:
    """Fill a live model from ``path``: (report line, arrays of each chunk)."""
    from megatron.core import parallel_state

    source = open_source(path)
    models, layout, at = _build(source, tp, pp, per_chunk, padded)
    for model in models:
        for parameter in model.parameters():
            parameter.data.fill_(float("nan"))
    if extra is not None:
        models[-1].register_parameter(extra, torch.nn.Parameter(torch.zeros(1)))
    stage = parallel_state.get_pipeline_model_parallel_rank()
    try:
        report = load_into(models, source, layout, stage, at)
    except UserError as error:
        return str(error), []
    return report, [
        {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        for model in models
    ]


def load_strictly(rank: int, world: int, path: str, tp: int, pp: int, per_chunk: int | None) -> int:
    """Give a converted rank file to Megatron's own strict loading; number of tensors."""
    from megatron.core import parallel_state

    models, layout, at = _build(open_source(path), tp, pp, per_chunk, None)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    folder = paths.iteration_folder(path, 1) / paths.rank_folder(at.rank, stage, pp)
    content = torch.load(folder / paths.RANK_FILE, weights_only=False)
    for key, model in zip(layout.chunk_keys(), models, strict=True):
        model.load_state_dict(content[key], strict=True)
    return sum(len(content[key]) for key in layout.chunk_keys())


def load_dist_strictly(rank: int, world: int, path: str, tp: int, pp: int) -> dict[str, np.ndarray]:
    """Let Megatron's own distributed checkpointing fill a model; its weights."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.validation import StrictHandling

    models, _, _ = _build(open_source(path), tp, pp, None, None)
    state = {"model": models[0].sharded_state_dict()}
    folder = paths.iteration_folder(path, 1)
    loaded = dist_checkpointing.load(state, str(folder), strict=StrictHandling.RAISE_ALL)
    return {
        name: value.float().numpy()
        for name, value in loaded["model"].items()
        if isinstance(value, torch.Tensor)
    }


def save_torch_dist(rank: int, world: int, path: str, target: str, tp: int, pp: int) -> None:
    """Load ``path`` and save it with Megatron's own distributed checkpointing."""
    from megatron.core import dist_checkpointing, parallel_state

    source = open_source(path)
    models, layout, at = _build(source, tp, pp, None, None)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    load_into(models, source, layout, stage, at)
    folder = Path(target) / "iter_0000007"
    if rank == 0:
        folder.mkdir(parents=True)
    torch.distributed.barrier()
    stored = CheckpointLayout(tp, layout, at.padded_vocab_size)
    state: dict[str, Any] = {
        "args": checkpoint_args(source.family, source.shape, stored, "fp32"),
        "iteration": 7,
    }
    state["model"] = models[0].sharded_state_dict()
    dist_checkpointing.save(state, str(folder))
    torch.distributed.barrier()
    if rank == 0:
        paths.write_pointer(target, 7)


def save_like_megatron(rank: int, world: int, path: str, target: str, tp: int, pp: int) -> None:
    """Save as Megatron-LM's trainer does: its own args, an optimizer entry, extra states."""
    from megatron.core import parallel_state
    from megatron.core.transformer.enums import AttnBackend

    source = open_source(path)
    models, layout, at = _build(source, tp, pp, None, None)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    load_into(models, source, layout, stage, at)
    shape = source.shape
    args = argparse.Namespace(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads,
        group_query_attention=True,
        num_query_groups=shape.num_query_groups,
        kv_channels=shape.kv_channels,
        max_position_embeddings=shape.max_position_embeddings,
        norm_epsilon=shape.norm_epsilon,
        rotary_base=int(shape.rotary_base),
        rotary_percent=1.0,
        untie_embeddings_and_output_weights=not shape.tied,
        add_qkv_bias=shape.add_qkv_bias,
        qk_layernorm=shape.qk_layernorm,
        normalization="RMSNorm",
        swiglu=True,
        position_embedding_type="rope",
        add_bias_linear=False,
        num_experts=None,
        padded_vocab_size=at.padded_vocab_size,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=None,
        attention_backend=AttnBackend.auto,
        params_dtype=torch.float32,
    )
    folder = Path(target) / "iter_0000100" / paths.rank_folder(at.rank, stage, pp)
    folder.mkdir(parents=True)
    content = {
        "args": args,
        "checkpoint_version": 3.0,
        "iteration": 100,
        "model": models[0].state_dict_for_save_checkpoint(),
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}},
        "rng_state": [{"np_rng_state": np.random.get_state()}],
    }
    torch.save(content, folder / paths.RANK_FILE)
    torch.distributed.barrier()
    if rank == 0:
        paths.write_pointer(target, 100)


def logits(rank: int, world: int, path: str, tp: int, ids: list[int]) -> np.ndarray:
    """fp32 logits ``[1, s, vocab]`` of a live tensor-parallel model, gathered over the ranks."""
    source = open_source(path)
    models, layout, at = _build(source, tp, 1, None, None)
    load_into(models, source, layout, 0, at)
    tokens = torch.tensor([ids])
    with torch.no_grad():
        mine = models[0].eval()(tokens, torch.arange(len(ids)).unsqueeze(0), None)
    parts = [torch.empty_like(mine) for _ in range(world)]
    torch.distributed.all_gather(parts, mine.contiguous())
    return torch.cat(parts, dim=-1)[..., : source.shape.vocab_size].numpy()
