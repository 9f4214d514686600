"""A page of histograms: PNG through matplotlib, or HTML that needs nothing."""

from __future__ import annotations

import html
from pathlib import Path

import numpy as np

from mindspeed.errors import UserError
from mindspeed_llm.data.view.stats import Answers, histogram
from mindspeed_llm.files import atomic_path, write_text_atomically

WIDTH, HEIGHT, MARGIN = 560, 220, 40


def plot(found: dict[str, Answers], title: str, path: Path) -> None:
    """Write histograms of lengths and of trained shares.

    Raises:
        UserError: another ending than .png or .html, or matplotlib is not there.
    """
    if path.suffix == ".html":
        write_text_atomically(path, _page(found, title))
    elif path.suffix == ".png":
        _picture(found, title, path)
    else:
        raise UserError(f"--plot {path}: the name must end in .png or .html.")


def _series(found: dict[str, Answers]) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Title, counts and edges of each histogram."""
    series = []
    for name, answers in found.items():
        what = f" ({name})" if name else ""
        counts, edges = histogram(answers.lengths)
        series.append((f"tokens of a sample{what}", counts, edges.astype(float)))
        shares = 100 * answers.trained / np.maximum(1, answers.lengths)
        counts, edges = np.histogram(shares, bins=20, range=(0, 100))
        series.append((f"trained share of a sample, %{what}", counts, edges))
    return series


def _picture(found: dict[str, Answers], title: str, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            f"--plot {path}: PNG needs matplotlib (pip install matplotlib); .html needs nothing."
        ) from None
    series = _series(found)
    figure = Figure(figsize=(8, 3 * len(series)), layout="constrained")
    figure.suptitle(title)
    for axes, (name, counts, edges) in zip(
        np.atleast_1d(figure.subplots(len(series))), series, strict=True
    ):
        axes.stairs(counts, edges, fill=True)
        axes.set_xlabel(name)
        axes.set_ylabel("samples")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _page(found: dict[str, Answers], title: str) -> str:
    blocks = []
    for name, answers in found.items():
        lines = [*answers.lines(), *(f"warning   {problem}" for problem in answers.problems())]
        heading = f"<h2>{html.escape(name)}</h2>" if name else ""
        blocks.append(f"{heading}<pre>{html.escape(chr(10).join(lines))}</pre>")
    blocks += [_chart(*one) for one in _series(found)]
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        "<style>body{font-family:sans-serif;margin:2em}rect{fill:#3b7dd8}</style></head>"
        f"<body><h1>{html.escape(title)}</h1>{''.join(blocks)}</body></html>\n"
    )


def _chart(name: str, counts: np.ndarray, edges: np.ndarray) -> str:
    """A bar chart as SVG."""
    most, span = max(1, int(counts.max(initial=1))), float(edges[-1] - edges[0]) or 1.0
    wide, high = WIDTH - MARGIN, HEIGHT - MARGIN
    bars = []
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        x, width = (left - edges[0]) / span * wide + MARGIN, (right - left) / span * wide
        height = count / most * (high - 10)
        bars.append(
            f'<rect x="{x:.1f}" y="{high - height:.1f}" width="{max(1, width - 1):.1f}" '
            f'height="{height:.1f}"><title>{left:g} to {right:g}: {count:,}</title></rect>'
        )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" font-size="12">{"".join(bars)}'
        f'<text x="{MARGIN}" y="{high + 14}">{edges[0]:g}</text>'
        f'<text x="{WIDTH}" y="{high + 14}" text-anchor="end">{edges[-1]:g}</text>'
        f'<text x="0" y="12">{most:,}</text>'
        f'<text x="{MARGIN + wide / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{html.escape(name)}</text></svg><br>"
    )
