"""A step of the whole model over tensor- and pipeline-parallel ranks.

Every rank calls :meth:`Stages.run` with the same tokens; hidden states go from stage to stage and
all ranks of the last stage return the logits of each row's last token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from megatron.core import parallel_state
from torch import Tensor

from mindspeed_llm.inference.cache import KeyValueCache, Step
from mindspeed_llm.inference.decoder import ChunkDecoder

if TYPE_CHECKING:
    from mindspeed_llm.models.gpt import GPTModel


class Forward(Protocol):
    """How one model chunk computes; see :class:`CachedForward` and :class:`FullForward`."""

    needs_all_tokens: bool

    def start(self, batch: int, at_most: int) -> None:
        """Begin a batch of ``batch`` rows of up to ``at_most`` tokens."""

    def run(self, chunk: int, inputs: Tensor, step: Step) -> Tensor:
        """Tokens or hidden states to hidden states ``[b, s, h]`` or this rank's logits."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the batch only."""


class CachedForward:
    """Each step computes the new tokens only; earlier keys and values come from a cache."""

    needs_all_tokens = False

    def __init__(self, chunks: list[GPTModel]) -> None:
        group = parallel_state.get_tensor_model_parallel_group()
        self._decoders = [ChunkDecoder(chunk, group) for chunk in chunks]
        self._device = next(chunks[0].parameters()).device
        self._caches: list[KeyValueCache] = []
        self._at_most = 0

    def start(self, batch: int, at_most: int) -> None:
        self._caches = [d.new_cache(batch, self._device) for d in self._decoders]
        self._at_most = at_most

    def run(self, chunk: int, inputs: Tensor, step: Step) -> Tensor:
        cache = self._caches[chunk]
        cache.reserve(step.longest, self._at_most)
        return self._decoders[chunk].run(inputs, cache, step)

    def keep(self, rows: Tensor) -> None:
        for cache in self._caches:
            cache.keep(rows)


class FullForward:
    """Each step runs Megatron's own forward over all tokens: slow, and right for any model."""

    needs_all_tokens = True

    def __init__(self, chunks: list[GPTModel]) -> None:
        self._chunks = chunks

    def start(self, batch: int, at_most: int) -> None:
        """Nothing is kept between steps."""

    def run(self, chunk: int, inputs: Tensor, step: Step) -> Tensor:
        model = self._chunks[chunk]
        out = full_forward(model, inputs)
        if not model.post_process:
            return out
        return out[torch.arange(len(out), device=out.device), step.last()]

    def keep(self, rows: Tensor) -> None:
        """Nothing is kept between steps."""


def full_forward(model: GPTModel, inputs: Tensor) -> Tensor:
    """Megatron's forward of a chunk: tokens ``[b, s]`` or hidden states ``[b, s, h]`` in.

    Returns:
        Hidden states ``[b, s, h]``, or from the last chunk this rank's logits
        ``[b, s, padded vocabulary / tp]``.
    """
    batch, width = inputs.shape[:2]
    if model.pre_process:
        tokens = inputs
    else:
        tokens = inputs.new_zeros(batch, width, dtype=torch.long)
        model.set_input_tensor(inputs.transpose(0, 1).contiguous())
    positions = torch.arange(width, device=inputs.device).expand(batch, -1)
    # Megatron keeps tensors from call to call (rotary angles): they must serve training too.
    with torch.inference_mode(False), torch.no_grad():
        out = model(tokens, positions, attention_mask=None)
    return out if model.post_process else out.transpose(0, 1)


class Stages:
    """The model chunks of this rank, connected to those of the other ranks.

    Args:
        chunks: this rank's model chunks, in ``eval`` mode.
        forward: how a chunk computes.
    """

    def __init__(self, chunks: list[GPTModel], forward: Forward) -> None:
        self.chunks = chunks
        self.forward = forward
        config = chunks[0].config
        self._hidden_size, self._dtype = config.hidden_size, config.params_dtype
        self.device = next(chunks[0].parameters()).device
        self._tp = parallel_state.get_tensor_model_parallel_group()
        self._pp = parallel_state.get_pipeline_model_parallel_group()
        self._model = parallel_state.get_model_parallel_group()
        ranks = torch.distributed.get_process_group_ranks(self._model)
        # Tensor-parallel ranks count fastest: this is the first one of the last stage.
        self._chooser = ranks[-self._tp.size()]
        self.chooses = torch.distributed.get_rank() == self._chooser

    def run(self, tokens: Tensor, step: Step) -> Tensor | None:
        """One step.

        Args:
            tokens: ``[b, s]``: padded prompts, or each row's newest token.

        Returns:
            Logits of each row's last token ``[b, padded vocabulary]`` on the last stage's ranks,
            None on the others.
        """
        return self._through(tokens, lambda number, x: self.forward.run(number, x, step))

    def all_logits(self, tokens: Tensor) -> Tensor | None:
        """As :meth:`run`, for every position of ``[b, s]`` tokens and by Megatron's forward."""
        return self._through(tokens, lambda number, x: full_forward(self.chunks[number], x))

    def _through(self, tokens: Tensor, run: Callable[[int, Tensor], Tensor]) -> Tensor | None:
        out = tokens
        for number, chunk in enumerate(self.chunks):
            out = run(number, tokens if chunk.pre_process else self._receive(tokens.shape))
            if not chunk.post_process:
                self._send(out)
        return self._gathered(out) if self.chunks[-1].post_process else None

    def agree(self, values: Tensor) -> Tensor:
        """The values of the rank that chooses tokens, on every rank."""
        if self._model.size() > 1:
            values = values.to(self.device)
            torch.distributed.broadcast(values, self._chooser, group=self._model)
        return values

    def _gathered(self, logits: Tensor) -> Tensor:
        if self._tp.size() == 1:
            return logits
        parts = [torch.empty_like(logits) for _ in range(self._tp.size())]
        torch.distributed.all_gather(parts, logits.contiguous(), group=self._tp)
        return torch.cat(parts, dim=-1)

    def _receive(self, size: tuple[int, ...]) -> Tensor:
        hidden = torch.empty(*size, self._hidden_size, dtype=self._dtype, device=self.device)
        torch.distributed.recv(hidden, group=self._pp, group_src=self._neighbour(-1))
        return hidden

    def _send(self, hidden: Tensor) -> None:
        torch.distributed.send(hidden.contiguous(), group=self._pp, group_dst=self._neighbour(1))

    def _neighbour(self, offset: int) -> int:
        return (self._pp.rank() + offset) % self._pp.size()
