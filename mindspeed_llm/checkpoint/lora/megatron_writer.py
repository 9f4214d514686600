"""Writing an adapter into Megatron's rank files, at any layout."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from mindspeed_llm.checkpoint import paths
from mindspeed_llm.checkpoint.lora.adapter import (
    Adapter,
    Patterns,
    adaptable,
    module_of,
    take_pair,
)
from mindspeed_llm.checkpoint.lora.megatron import HALF
from mindspeed_llm.checkpoint.metadata import DTYPE_SHORT, CheckpointLayout, checkpoint_args
from mindspeed_llm.checkpoint.placement import held_tensors
from mindspeed_llm.checkpoint.to_megatron import CHECKPOINT_VERSION
from mindspeed_llm.checkpoint.training_state import ITERATION
from mindspeed_llm.models.family import Family
from mindspeed_llm.models.shape import ModelShape
from mindspeed_llm.models.splits import TensorParallel


class MegatronAdapterWriter:
    """Writes one iteration folder.

    Args:
        adapter: what to write.
        family, shape: the model that it is for.
        layout: how to divide it.
    """

    def __init__(
        self, adapter: Adapter, family: Family, shape: ModelShape, layout: CheckpointLayout
    ) -> None:
        self._adapter = adapter
        self._family = family
        self._shape = shape
        self._layout = layout
        self._args = self._describe()
        self.tensors = self.nbytes = 0

    def write(self, folder: Path) -> None:
        """Write all rank folders into ``folder``."""
        grid, pipeline = self._layout.grid, self._layout.pipeline
        for stage in range(pipeline.pipeline_parallel):
            for at in self._layout.ranks(self._shape):
                content = {
                    "args": self._args,
                    "checkpoint_version": CHECKPOINT_VERSION,
                    "iteration": ITERATION,
                    **{
                        key: self._state(stage, chunk, at)
                        for chunk, key in enumerate(pipeline.chunk_keys())
                    },
                }
                expert_rank = at.experts.rank if at.experts is not None else 0
                target = folder / grid.folder(at.rank, stage, expert_rank)
                target.mkdir()
                torch.save(content, target / paths.RANK_FILE)

    def _state(self, stage: int, chunk: int, at: TensorParallel) -> dict[str, Tensor]:
        """The halves that one rank holds of one chunk's pairs; experts are never stacked."""
        pipeline = self._layout.pipeline
        state = {}
        for held in held_tensors(self._family, self._shape, pipeline, stage, chunk, at):
            entry = held.entries[0]
            if entry.megatron not in self._adapter.names:
                continue
            mine = take_pair(self._adapter.pair(entry), entry, held.at)
            for half, tensor in (("A", mine.a), ("B", mine.b)):
                # A copy: torch.save would store all of the memory that a view looks into.
                state[module_of(held.name) + HALF.format(half)] = tensor.clone().contiguous()
        self.tensors += len(state)
        self.nbytes += sum(tensor.nbytes for tensor in state.values())
        return state

    def _describe(self) -> argparse.Namespace:
        """The checkpoint's ``args``: those of the model, and the adapter's own."""
        settings = self._adapter.settings
        patterns = Patterns(settings)
        dtype = torch.float32
        for name, entry in adaptable(self._family, self._shape).items():
            if name in self._adapter.names:
                pair = self._adapter.pair(entry)
                patterns.add(module_of(name), pair)
                dtype = pair.b.dtype
        args = checkpoint_args(self._family, self._shape, self._layout, DTYPE_SHORT[dtype])
        args.lora_r = settings.rank
        args.lora_alpha = settings.alpha
        args.lora_use_rslora = settings.use_rslora
        args.lora_target_modules = list(settings.targets)
        args.lora_rank_pattern = patterns.rank_pattern()
        args.lora_alpha_pattern = patterns.alpha_pattern()
        args.lora_pairs = len(patterns.ranks)
        return args
