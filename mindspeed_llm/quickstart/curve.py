"""The loss of a run as a picture, from its ``metrics.jsonl``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of training iterations."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "lm_loss" in row]


def draw(parts: list[tuple[str, list[dict[str, Any]]]], target: Path) -> None:
    """Draw the loss of consecutive parts of a run, each with its label, into a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    for label, rows in parts:
        iterations = [row["iteration"] for row in rows]
        axes.plot(iterations, [row["lm_loss"] for row in rows], marker=".", label=label)
    axes.set_xlabel("iteration")
    axes.set_ylabel("lm loss (per token)")
    axes.set_title("SmolLM2-135M-Instruct, continued pretraining")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(target)
    pyplot.close(figure)


def sparkline(values: list[float]) -> str:
    """The same in one line of a terminal."""
    bars = "▁▂▃▄▅▆▇█"
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(bars[min(7, int(8 * (value - low) / span))] for value in values)
