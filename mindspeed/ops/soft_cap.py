"""Soft-capping of logits and attention scores (arXiv:2408.00118)."""

from __future__ import annotations

from torch import Tensor


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): close to x where it is small, never beyond the cap."""
    return (x / cap).tanh() * cap
