"""Mixtures of experts as ``transformers`` computes them: choices, router's losses, gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.further_tokens import load, named_as_on_disk


@dataclass
class Reference:
    """What autograd finds for some rows of tokens.

    Attributes:
        gradients: by the names on disk.
        chosen: by layer, counted from 1: ``[row, token, expert]``, whether the token visits it.
    """

    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    chosen: dict[int, np.ndarray] = field(default_factory=dict)


def reference(
    folder: Path, ids: list[list[int]], balance: float = 0.0, small_logits: float = 0.0
) -> Reference:
    """Gradients of the mean loss of all predicted tokens, each row being a micro-batch.

    Args:
        balance: weight of the balance loss (arXiv:2101.03961), a mean over rows.
        small_logits: weight of the z loss (arXiv:2202.08906), a mean over rows.
    """
    import torch

    model = load(folder)
    found = Reference()
    recorded = _record_routers(model)
    total = torch.zeros(())
    for row in torch.tensor(ids):
        logits = model(row[None, :-1]).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, row[1:])
    for number, calls in recorded.items():
        for scores, _ in calls:
            total = total + small_logits * scores.logsumexp(-1).square().mean()
            total = total + balance * _balance_loss(scores, calls[0][1].shape[-1])
        found.chosen[number] = np.stack([_as_map(*call) for call in calls])
    (total / len(ids)).backward()
    found.gradients = _gradients(model)
    return found


def _record_routers(model: Any) -> dict[int, list[tuple[Any, Any]]]:
    """(logits, chosen experts) of every call of each layer's router, from now on."""
    recorded: dict[int, list[tuple[Any, Any]]] = {}

    def record(number: int):
        def hook(module: Any, inputs: Any, outputs: Any) -> None:
            recorded.setdefault(number, []).append((outputs[0], outputs[-1]))

        return hook

    for number, layer in enumerate(model.model.layers, start=1):
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(record(number))
    return recorded


def _balance_loss(logits: Any, topk: int) -> Any:
    """Experts x sum over experts of (share of choices x mean score)."""
    scores = logits.softmax(-1)
    tokens, experts = scores.shape
    chosen = scores.topk(topk, dim=-1).indices.flatten()
    share = chosen.bincount(minlength=experts) / (tokens * topk)
    return experts * (share * scores.mean(0)).sum()


def _as_map(logits: Any, chosen: Any) -> np.ndarray:
    chosen_map = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(chosen_map, chosen.numpy(), True, axis=1)
    return chosen_map


def _gradients(model: Any) -> dict[str, np.ndarray]:
    found = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    layers = {n.removeprefix("model."): g for n, g in found.items() if ".layers." in n}
    rest = {n: g for n, g in found.items() if ".layers." not in n}
    return named_as_on_disk(layers) | rest
