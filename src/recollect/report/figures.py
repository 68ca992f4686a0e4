"""The report's plots, as SVG that uses the text colour of the page (dark or light)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator

_INK = "#010203"
"""Placeholder colour, replaced by `currentColor` after matplotlib has drawn the plot."""
_BLUE, _ORANGE = "#3b82f6", "#ea580c"
"""Both are visible on white and on black."""
_CROWD = 500
"""More points than this are drawn as a line."""
_INDENT = 0.02
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "recollect",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def loss_trace(trace: Sequence[float]) -> str:
    """Loss against iteration, both on logarithmic axes."""
    values = np.asarray(trace, dtype=float)
    keep = np.isfinite(values) & (values > 0)

    def draw(axes: Axes) -> None:
        axes.plot(
            np.flatnonzero(keep) + 1,
            values[keep],
            color=_BLUE,
            linewidth=1.4,
            marker="." if keep.sum() < 2 else "",
        )
        axes.set(**_log(keep, "xscale", "yscale"), xlabel="iteration", ylabel="‖P⊥Δθ‖² / ‖Δθ‖²")

    return _svg(draw)


def spectrum_plot(singular_values: Sequence[float], rank: int | None) -> str:
    """Singular values of ΔW1; those of the subspace that was used are coloured, if it is known."""
    values = np.asarray(singular_values, dtype=float)
    shown = min(len(values), max(2 * (rank or 0) + 10, 40))
    values = values[:shown]
    index = np.arange(1, len(values) + 1)

    def draw(axes: Axes) -> None:
        axes.set(**_log(values > 0, "yscale"), xlabel="index", ylabel="singular value of ΔW1")
        if rank is None:
            axes.scatter(index[values > 0], values[values > 0], s=12, color=_INK, alpha=0.6)
            return
        inside = (index <= rank) & (values > 0)
        outside = (index > rank) & (values > 0)
        axes.scatter(index[inside], values[inside], s=12, color=_BLUE, label=f"used: {rank}")
        axes.scatter(index[outside], values[outside], s=12, color=_INK, alpha=0.6, label="left out")
        axes.legend(frameon=False)

    return _svg(draw)


def error_plot(errors: Sequence[float], threshold: float, chance: float | None) -> str:
    """Every point's error, sorted, with the threshold of recovery and what guessing would score."""
    values = np.sort(np.asarray([error for error in errors if np.isfinite(error)], dtype=float))

    def draw(axes: Axes) -> None:
        _sorted(axes, values)
        axes.axhline(threshold, color=_INK, linewidth=0.8, linestyle="--")
        high = bool(
            (values > threshold).sum() > len(values) / 2
        )  # the label goes where there are fewer points
        place: Any = {"ha": "right", "va": "top"} if high else {"ha": "left", "va": "bottom"}
        axes.text(
            1 if high else _INDENT,
            threshold,
            "recovered below",
            transform=axes.get_yaxis_transform(),
            **place,
        )
        if chance is not None:
            axes.axhline(chance, color=_ORANGE, linewidth=1.2)
            axes.text(
                _INDENT,
                chance,
                "chance, within the span",
                va="bottom",
                transform=axes.get_yaxis_transform(),
            )
        axes.set(
            **_log(values > 0, "yscale"), xlabel="points, sorted", ylabel="error ‖x − x̂‖ / ‖x‖"
        )

    return _svg(draw)


def confidence_plot(confidence: Sequence[float], level: float) -> str:
    """Every candidate's confidence, sorted, with the level from which it is called recovered."""
    values = np.sort(np.asarray(confidence, dtype=float))[::-1]

    def draw(axes: Axes) -> None:
        _sorted(axes, values)
        axes.axhline(level, color=_INK, linewidth=0.8, linestyle="--")
        right = (
            axes.get_yaxis_transform()
        )  # at the right, confidences are lowest, so that no point is near the label
        axes.text(1, level, "called recovered above", va="bottom", ha="right", transform=right)
        axes.set(ylim=(-0.03, 1.05), xlabel="candidates, sorted", ylabel="confidence")

    return _svg(draw)


def _sorted(axes: Axes, values: np.ndarray) -> None:
    """Draw points, or a line if so many points would overlap and make the page slow."""
    index = np.arange(1, len(values) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if len(values) > _CROWD:
        axes.plot(index, values, color=_BLUE, linewidth=2)
    else:
        axes.scatter(index, values, s=12, color=_BLUE)


def _log(positive: np.ndarray, *axes: str) -> dict[str, str]:
    """A logarithmic scale for these axes if any value is positive, else a linear one."""
    return dict.fromkeys(axes, "log" if positive.any() else "linear")


class _Plain(LogFormatterSciNotation):
    """Labels like 0.01 or 1e-09: the exponent in 10⁻⁹ would be too small to read on a phone."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _svg(draw: Callable[[Axes], None]) -> str:
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.0, 2.6), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                axis.set_major_formatter(_Plain())
                axis.set_minor_formatter(_Plain())
        stream = io.StringIO()
        figure.savefig(
            stream,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1),
        count=1,
    )
