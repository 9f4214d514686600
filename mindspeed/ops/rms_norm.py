"""RMS normalisation over the last dimension (arXiv:1910.07467)."""

from __future__ import annotations

import torch


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight; the statistics in fp32, the result in x's dtype."""
    wide = x.float() if x.dtype != torch.float64 else x
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise ``x`` [..., h] by its root mean square and scale it by ``weight`` [h]."""
    return reference(x, weight, eps)
