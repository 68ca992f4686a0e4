"""The paper's figures, each drawn from a table alone: mean and standard deviation of ρ over seeds,
against size.

As in the paper, the size is the number of last-layer parameters p^(L) = c·p. In addition to the
paper's three methods, the figures show `auto` and the score of guessing within the span of the
data.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recollect.errors import OptionError
from recollect.study.table import Row, scored


@dataclass(frozen=True)
class Line:
    """The line of one of the compared methods."""

    label: str
    where: Mapping[str, str]
    colour: str
    mark: str


LINES = (
    Line("Full space (Alg. 1)", {"method": "full", "solver": "gd"}, "#D55E00", "s"),
    Line("Subspace of ΔW₁ (Alg. 2)", {"method": "subspace", "solver": "gd"}, "#0072B2", "o"),
    Line("True subspace", {"method": "true", "solver": "gd"}, "#009E73", "^"),
    Line("auto", {"method": "subspace", "solver": "auto"}, "#000000", "D"),
)
"""The colours are those of Okabe and Ito, which colour-blind readers can tell apart. The marks are
for print in black and white."""

MEASURES = {"rho": "ρ", "rho_up_to_sign": "ρ up to sign"}
_CHANCE = {"rho": "chance_span", "rho_up_to_sign": "chance_span_up_to_sign"}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "recollect",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
}


@dataclass(frozen=True)
class Panel:
    title: str
    where: Mapping[str, Any]
    scale: str = "log"
    """`linear` is the paper's scale for ρ; `log` shows small values."""

    def rows(self, table: Sequence[Row]) -> list[Row]:
        """The runs of this panel. Runs of different studies must not be averaged."""
        rows = [
            row for row in table if all(row[name] == value for name, value in self.where.items())
        ]
        studies = sorted(
            {", ".join(f"{name} {row[name]}" for name in ("dataset", "n")) for row in rows}
        )
        if len(studies) > 1:
            raise OptionError(
                f"expected runs on one data set in a panel, got {' and '.join(studies[:3])}; give "
                "tables of one study"
            )
        return rows


@dataclass(frozen=True)
class Point:
    """Mean and standard deviation over the runs of one method at one size."""

    x: int
    mean: float
    deviation: float
    runs: int


def line_of(rows: Sequence[Row], line: Line, measure: str) -> list[Point]:
    sizes: dict[int, list[float]] = {}
    for row in rows:
        if all(row[name] == value for name, value in line.where.items()):
            sizes.setdefault(row["outputs"] * row["width"], []).append(row[measure])
    return [
        Point(
            x,
            statistics.fmean(values),
            statistics.stdev(values) if len(values) > 1 else 0.0,
            len(values),
        )
        for x, values in sorted(sizes.items())
    ]


def quality(
    table: Sequence[Row], panels: Sequence[Panel], *, columns: int, measure: str = "rho"
) -> dict[str, bytes]:
    """Plots of reconstruction error against size, as `.png` and `.svg` files."""
    rows, table = -(-len(panels) // columns), scored(table)
    with rc_context(STYLE):
        figure = Figure(figsize=(1.0 + 3.9 * columns, 1.1 + 2.9 * rows), layout="constrained")
        alike = len({panel.scale for panel in panels}) == 1
        grid = figure.subplots(rows, columns, squeeze=False, sharey=alike)
        drawn: dict[str, Any] = {}
        for axes, panel in zip(grid.flat, panels, strict=False):
            drawn |= _panel(axes, panel.rows(table), panel, measure)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes in grid[:, 0]:
            axes.set_ylabel(f"{MEASURES[measure]}, mean and std")
        order = [
            name
            for name in (*(line.label for line in LINES), "guessing in the span")
            if name in drawn
        ]
        figure.legend(
            [drawn[name] for name in order],
            order,
            loc="outside lower center",
            ncols=3,
            frameon=False,
        )
        return rendered(figure)


def _panel(axes: Axes, rows: Sequence[Row], panel: Panel, measure: str) -> dict[str, Any]:
    axes.set(xscale="log", yscale=panel.scale, title=panel.title)
    if not any(line_of(rows, line, measure) for line in LINES):
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color="#777777")
        return {}
    drawn = {}
    for line in LINES:
        points = line_of(rows, line, measure)
        if points:
            x, mean, deviation = (
                np.array([getattr(point, name) for point in points]) for name in _DRAWN
            )
            (drawn[line.label],) = axes.plot(
                x, mean, f"{line.mark}-", color=line.colour, markersize=4.5, linewidth=1.3
            )
            low = mean - deviation
            if panel.scale == "log":  # a logarithmic axis cannot show values of zero or less
                low = np.maximum(low, mean / 10)
            axes.fill_between(x, low, mean + deviation, color=line.colour, alpha=0.15, linewidth=0)
    chance = statistics.fmean(row[_CHANCE[measure]] for row in rows)
    drawn["guessing in the span"] = axes.axhline(
        chance, color="#777777", linestyle=":", linewidth=1.2
    )
    sizes = sorted({row["outputs"] * row["width"] for row in rows})
    axes.set_xticks(sizes, [_short(size) for size in sizes], minor=False)
    axes.minorticks_off()
    outputs = sorted({row["outputs"] for row in rows})
    axes.set_xlabel("width p" if outputs == [1] else f"last-layer parameters p⁽ᴸ⁾ = {outputs[-1]}p")
    axes.grid(alpha=0.25)
    runs = sorted({point.runs for line in LINES for point in line_of(rows, line, measure)})
    count = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    axes.set_title(f"{panel.title}\n{count} run{'s' if runs[-1] > 1 else ''} a point")
    return drawn


_DRAWN = ("x", "mean", "deviation")


def _short(size: int) -> str:
    return f"{size / 1000:g}k" if size >= 1000 else f"{size:g}"


def spectral_decay(
    spectra: Mapping[int, Sequence[float]], rank: int, width: int
) -> dict[str, bytes]:
    """Figure 2, left: the singular values of ΔW₁, one line per training seed.

    `rank` is the dimension of the span of the data.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for (seed, values), colour in zip(
            spectra.items(), ("#0072B2", "#D55E00", "#009E73"), strict=False
        ):
            axes.plot(
                range(1, len(values) + 1),
                values,
                ".-",
                color=colour,
                linewidth=1,
                label=f"training seed {seed}",
            )
        axes.axvline(
            rank + 0.5,
            color="#777777",
            linestyle=":",
            linewidth=1.2,
            label=f"rank of the data: {rank}",
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(
            yscale="log",
            xlabel="index",
            ylabel="singular value of ΔW₁",
            title=f"two layers, width {width}",
        )
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        return rendered(figure)


@dataclass(frozen=True)
class Strip:
    """One row of pictures: what a method reconstructed of some images at one width."""

    label: str
    images: np.ndarray
    """k×H×W×3 bytes."""


def gallery(truth: np.ndarray, strips: Sequence[Strip]) -> dict[str, bytes]:
    """The training images in the first row; below, what was found of each, one row per strip."""
    rows = [Strip("training\nimages", truth), *strips]
    count = len(truth)
    with rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 0.62 * count, 0.68 * len(rows) + 0.1))
        grid = figure.subplots(len(rows), count, squeeze=False)
        for strip, line in zip(rows, grid, strict=True):
            for image, axes in zip(strip.images, line, strict=True):
                axes.imshow(image, interpolation="nearest")
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(False)
            line[0].set_ylabel(
                strip.label, rotation=0, ha="right", va="center", fontsize=8, labelpad=6
            )
        left = 1.4 / figure.get_figwidth()
        figure.subplots_adjust(
            left=left, right=0.995, top=0.99, bottom=0.01, wspace=0.06, hspace=0.06
        )
        return rendered(figure)


def rendered(figure: Figure) -> dict[str, bytes]:
    files = {}
    for kind in ("png", "svg"):
        stream = io.BytesIO()
        # The date is left out, so that the same table gives the same bytes.
        figure.savefig(
            stream, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
        )
        files[f".{kind}"] = stream.getvalue()
    return files
