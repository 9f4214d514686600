"""Choosing the next token from logits: pure functions, the same on every device and layout.

Logits are taken as fp32 and probabilities as fp64, so nothing overflows or vanishes at a
temperature near zero or in bf16. One uniform number decides a draw, by inverting the cumulative
distribution: the same seed gives the same token whatever the batch or the parallel layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mindspeed.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; the filters apply in the order of the fields.

    Attributes:
        temperature: logits are divided by it; 0 takes the likeliest token (greedy).
        top_k: only the k likeliest tokens; 0, or more than there are, keeps all.
        top_p: only the fewest likeliest tokens whose probabilities sum to at least this
            (arXiv:1904.09751); at least one is kept, so 0 is greedy. 1 keeps all.
        seed: of the request's own random numbers.

    Raises:
        UserError: a value is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(f"temperature {self.temperature} must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top-k {self.top_k} must be 0 (all tokens) or more")
        if not 0 <= self.top_p <= 1:
            raise UserError(f"top-p {self.top_p} must lie between 0 (greedy) and 1 (all tokens)")

    @property
    def greedy(self) -> bool:
        """Whether only the likeliest token can be chosen."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0

    def generator(self) -> torch.Generator:
        """A fresh source of this request's random numbers."""
        return torch.Generator().manual_seed(self.seed)

    def describe(self) -> str:
        """One line for the start-up block."""
        if self.greedy:
            return "greedy"
        top_k = self.top_k or "all"
        return f"temperature {self.temperature:g}, top-k {top_k}, top-p {self.top_p:g}"


# How many of the likeliest tokens are looked at first for top-p, before all are sorted.
_FIRST_LOOKS = (64, 1024)


def candidates(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The tokens that may be drawn and their probabilities (fp64, sum 1).

    Args:
        logits: ``[vocabulary]``, any float type, without rows that only pad the vocabulary.

    Returns:
        (token ids, probabilities), the likeliest first where a filter sorted them.
    """
    wide = logits.float()
    if sampling.greedy:
        return wide.argmax(-1, keepdim=True), wide.new_ones(1, dtype=torch.float64)
    # The maximum is taken off first: dividing by a tiny temperature then gives 0 or -large.
    scores = ((wide - wide.max()) / sampling.temperature).clamp(min=torch.finfo().min)
    if 0 < sampling.top_k < scores.numel():
        scores, ids = scores.topk(sampling.top_k)
        probabilities = scores.double().softmax(-1)
        if sampling.top_p < 1:
            ids, probabilities = _nucleus(ids, probabilities, sampling.top_p)
        return ids, probabilities
    probabilities = scores.double().softmax(-1)
    if sampling.top_p == 1:
        return torch.arange(scores.numel(), device=scores.device), probabilities
    for look in (*_FIRST_LOOKS, probabilities.numel()):
        likeliest, ids = probabilities.topk(min(look, probabilities.numel()))
        if likeliest.sum() >= sampling.top_p:
            break
    return _nucleus(ids, likeliest, sampling.top_p)


def _nucleus(ids: Tensor, probabilities: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Cut descending probabilities where their sum first reaches ``top_p``; scale to sum 1."""
    before = probabilities.cumsum(-1) - probabilities
    kept = max(1, int((before < top_p).sum()))
    return ids[:kept], probabilities[:kept] / probabilities[:kept].sum()


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw one token.

    Args:
        logits: ``[vocabulary]``.
        generator: on the CPU; one number is taken from it unless ``sampling`` is greedy.
    """
    ids, probabilities = candidates(logits, sampling)
    if sampling.greedy:
        return int(ids)
    total = probabilities.cumsum(-1).cpu()
    uniform = torch.rand((), dtype=torch.float64, generator=generator)
    at = int(torch.searchsorted(total, uniform * total[-1], right=True))
    return int(ids[min(at, ids.numel() - 1)])


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each row's token under the model itself (no temperature, no filter).

    Args:
        logits: ``[batch, vocabulary]``.
        tokens: ``[batch]``.

    Returns:
        fp32 ``[batch]``.
    """
    wide = logits.float()
    return wide.gather(-1, tokens[:, None])[:, 0] - wide.logsumexp(-1)
