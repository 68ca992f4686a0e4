"""The bounds of the lemma and the theorem compared with measurements, for tanh random features.

deviation   sup |k_p − k_∞| for several draws of the features, and the lemma's ε for this p and δ
failure     how often the supremum exceeds ε, and the lemma's δ
width       the smallest p at which an attack recovers all points, and the theorem's p
"""

from __future__ import annotations

import csv
import io
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recollect import Basis, FullSpace, GradientDescent, Projection, random_features, reconstruct
from recollect.attacks.result import Reconstruction
from recollect.errors import RecollectError, RecollectWarning
from recollect.shapes import Float, Tensor
from recollect.simulate.training import ClosedForm, Training, minimum_norm
from recollect.solve.loop import Status
from recollect.study.figures import STYLE, rendered
from recollect.system.progress import Progress
from recollect.system.seeds import stream
from recollect.theory.bounds import Lemma, log_recovery_width, subspace_separation
from recollect.theory.constant import log_C
from recollect.theory.deviation import deviation, features
from recollect.theory.kernel import Zonal
from recollect.truth.match import signed_distances

Row = dict[str, Any]
DELTA = 0.05
NAME = "tanh"
_CLOSE = 0.1
"""A point counts as recovered if its error is below this fraction of its norm."""


@dataclass(frozen=True)
class Sizes:
    dims: tuple[int, ...] = (2, 3, 10, 30)
    widths: tuple[int, ...] = (100, 300, 1000, 3000)
    draws: int = 20
    failure_draws: int = 1000
    failure_width: int = 300
    n: int = 4
    spaces: tuple[tuple[int, int], ...] = (
        (2, 2),
        (3, 3),
        (5, 5),
        (10, 10),
        (10, 2),
        (10, 3),
        (10, 5),
    )
    """(d, r): the dimension of the inputs, and of the subspace that contains the data."""
    seeds: int = 3
    iterations: int = 2000


QUICK = Sizes(
    dims=(2, 3, 10),
    widths=(100, 300),
    draws=5,
    failure_draws=200,
    failure_width=100,
    n=3,
    spaces=((2, 2), (3, 3), (10, 10), (10, 2)),
    seeds=2,
    iterations=1000,
)


def measure(progress: Progress, sizes: Sizes) -> list[Row]:
    parts = [_deviations(sizes), _failures(sizes), _widths(sizes)]
    total = len(sizes.dims) * len(sizes.widths) + 2 + 2 * len(sizes.spaces)
    rows: list[Row] = []
    with progress("measuring", total) as report:
        steps = 0
        for part in parts:
            for found in part:
                rows += found
                steps += 1
                report(steps, str(found[0]["part"]))
    return rows


def _deviations(sizes: Sizes) -> Iterator[list[Row]]:
    for d in sizes.dims:
        for p in sizes.widths:
            found = deviation(NAME, *features(sizes.draws, p, d, 0)).tolist()
            promised = Lemma(d, 1.0, 1.0).log_epsilon(p, math.log(DELTA))
            yield [
                {
                    "part": "deviation",
                    "d": d,
                    "p": p,
                    "seed": k,
                    "measured": value,
                    "promised": math.exp(promised),
                }
                for k, value in enumerate(found)
            ]


def _failures(sizes: Sizes) -> Iterator[list[Row]]:
    """Deviations of many draws of the features; sorted, they give the failure rate at every ε."""
    p = sizes.failure_width
    for d in (2, 3):
        found: list[float] = []
        for seed in range(-(-sizes.failure_draws // 200)):
            some = min(200, sizes.failure_draws - 200 * seed)
            found += deviation(
                NAME, *features(some, p, d, 1 + seed), seed=seed, climbers=4, pairs=128
            ).tolist()
        promised = math.exp(Lemma(d, 1.0, 1.0).log_epsilon(p, math.log(DELTA)))
        yield [
            {"part": "failure", "d": d, "p": p, "seed": k, "measured": value, "promised": promised}
            for k, value in enumerate(found)
        ]


def _widths(sizes: Sizes) -> Iterator[list[Row]]:
    for d, r in sizes.spaces:
        for solver in ("auto", "gd"):
            yield [_least_width(sizes, d, r, solver, seed) for seed in range(sizes.seeds)]


def _least_width(sizes: Sizes, d: int, r: int, solver: str, seed: int) -> Row:
    """The first p of a geometric series that recovers all points, and the theorem's p."""
    row: Row = {
        "part": "width",
        "d": d,
        "r": r,
        "solver": solver,
        "seed": seed,
        "n": sizes.n,
        "measured": None,
    }
    p = max(4, sizes.n * r // 2)  # half of the n·r unknowns; fewer features would not suffice
    while p <= 100 * sizes.n * r:
        try:
            done, X, U = _victim(sizes.n, d, r, p, seed)
            found = _attack(done, U, solver, sizes, d, seed)
        except RecollectError:  # too few features to interpolate, or to determine anything
            p = math.ceil(1.3 * p)
            continue
        if bool((signed_distances(X, found.inputs).min(1).values < _CLOSE * math.sqrt(d)).all()):
            return {**row, "measured": p, **_promised(X, r)}
        p = math.ceil(1.3 * p)
    return row


def _promised(X: Float[Tensor, "n d"], r: int) -> Row:
    """The theorem's p at α = K_∞⁻¹y and α̂ = α, which is the limit of wide networks."""
    d = X.shape[1]
    K = torch.from_numpy(Zonal(NAME)((X @ X.T / d).numpy()))
    form = ClosedForm(torch.linalg.solve(K, _labels(len(X))), float(torch.pdist(X).min()))
    facts: Row = {"alpha": form.l1, "c": form.c, "separation": form.separation}
    if r in (2, 3):  # the dimensions for which C can be computed
        log_constant = log_C(
            NAME, r, subspace_separation(form.separation, d, r), form.c / (8 * form.l1)
        )
        given = {"log_C": log_constant, "alpha": form.l1, "alpha_hat": form.l1, "c": form.c}
        log_p = log_recovery_width(Lemma(r, 1.0, 1.0), **given, log_delta=math.log(DELTA))
        facts |= {"log10_C": log_constant / math.log(10), "log10_promised": log_p / math.log(10)}
    return facts


def _labels(n: int) -> Float[Tensor, "n 1"]:
    return torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(n, 1)[:n]


def _victim(
    n: int, d: int, r: int, p: int, seed: int
) -> tuple[Training, Float[Tensor, "n d"], Float[Tensor, "d r"]]:
    """A random features model with V from N(0, 1/d) and b from N(0, 1), trained on labels ±1.

    Of 50 random sets of n points, the one with the largest minimum distance is used. The points
    have their own random stream: (d, r) and (r, r) use the same points up to a rotation and the
    radius.
    """
    of_points, of_space = stream("guarantee points", seed), stream("guarantee subspace", seed)
    U = torch.linalg.qr(torch.randn(d, r, generator=of_space, dtype=torch.float64))[0]
    many = torch.nn.functional.normalize(
        torch.randn(50, n, r, generator=of_points, dtype=torch.float64), dim=2
    )
    apart = torch.cdist(many, many) + 10 * torch.eye(n, dtype=torch.float64)
    X = math.sqrt(d) * many[apart.amin((1, 2)).argmax()] @ U.T
    network = random_features(d, p, 1, bias=True, activation=NAME)
    first = network.layers[0]
    V, b = (one[0] for one in features(1, p, d, seed))
    theta_0 = {
        first.weight: V,
        str(first.bias): b,
        network.last.weight: torch.zeros(1, p, dtype=torch.float64),
    }
    return minimum_norm(network, theta_0, X, _labels(n)), X, U


def _attack(
    done: Training, U: Tensor, solver: str, sizes: Sizes, d: int, seed: int
) -> Reconstruction:
    space = FullSpace() if U.shape[0] == U.shape[1] else Basis(U=U)
    attack = Projection(space=space, norm=math.sqrt(d))
    if solver == "gd":
        attack = Projection(
            space=space,
            norm=math.sqrt(d),
            solver=GradientDescent(iterations=sizes.iterations),
            restarts=2,
        )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RecollectWarning
        )  # widths with fewer equations than unknowns are tried on purpose
        found = reconstruct(done.victim, sizes.n, attack, seed=seed, device="cpu")
    if found.status is Status.INTERRUPTED:  # Ctrl-C ended this run; end the others too
        raise KeyboardInterrupt
    return found


def draw(rows: Sequence[Row]) -> dict[str, bytes]:
    with rc_context(STYLE):
        figure = Figure(figsize=(12.5, 4.6), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _draw_deviation(left, [row for row in rows if row["part"] == "deviation"])
        _draw_failure(middle, [row for row in rows if row["part"] == "failure"])
        _draw_widths(right, [row for row in rows if row["part"] == "width"])
        return rendered(figure)


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")


def _draw_deviation(axes: Axes, rows: Sequence[Row]) -> None:
    for d, colour in zip(sorted({row["d"] for row in rows}), _COLOURS, strict=False):
        here = [row for row in rows if row["d"] == d]
        widths = sorted({row["p"] for row in here})
        values = [[row["measured"] for row in here if row["p"] == p] for p in widths]
        axes.plot(
            widths,
            [statistics.median(some) for some in values],
            "o-",
            color=colour,
            label=f"d = {d}",
            markersize=4,
        )
        axes.fill_between(
            widths,
            [min(some) for some in values],
            [max(some) for some in values],
            color=colour,
            alpha=0.2,
        )
        promised = [next(row["promised"] for row in here if row["p"] == p) for p in widths]
        axes.plot(widths, promised, "--", color=colour, linewidth=1)
    draws, widths = len({row["seed"] for row in rows}), sorted({row["p"] for row in rows})
    axes.axhline(2.0, color="#777777", linestyle=":", linewidth=1)
    widest = max(row["p"] for row in rows)
    axes.text(
        widest, 2.05, "2M²: always true", fontsize=8, ha="right", va="bottom", color="#555555"
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="width p",
        ylabel="sup |k$_p$ − k$_∞$|",
        title=f"measured, and the lemma's ε (dashed)\nδ = {DELTA:g}, median and range of {draws} "
        "draws",
    )
    axes.set_xticks(widths, [f"{p}" for p in widths])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.3 * min(row["measured"] for row in rows))  # room for the legend
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)


def _draw_failure(axes: Axes, rows: Sequence[Row]) -> None:
    for d, colour in zip(sorted({row["d"] for row in rows}), _COLOURS, strict=False):
        values = sorted((row["measured"] for row in rows if row["d"] == d), reverse=True)
        p = next(row["p"] for row in rows if row["d"] == d)
        axes.plot(
            values,
            [(k + 1) / len(values) for k in range(len(values))],
            color=colour,
            label=f"d = {d}: measured",
        )
        epsilon = [0.02 * 1.05**k for k in range(120)]
        lemma = [
            math.exp(min(0.0, Lemma(d, 1.0, 1.0).log_delta(p, math.log(one)))) for one in epsilon
        ]
        shown = [(one, value) for one, value in zip(epsilon, lemma, strict=True) if value > 1e-4]
        axes.plot(
            *zip(*shown, strict=True), "--", color=colour, linewidth=1, label=f"d = {d}: lemma"
        )
    axes.set(
        xscale="log",
        yscale="log",
        ylim=(5e-4, 2),
        xlabel="ε",
        ylabel="how often the supremum exceeds ε",
        title=f"failing, p = {rows[0]['p']}\n{len(values)} draws",
    )
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="center", bbox_to_anchor=(0.655, 0.3))


def _draw_widths(axes: Axes, rows: Sequence[Row]) -> None:
    spaces = list(dict.fromkeys((row["d"], row["r"]) for row in rows))
    for solver, colour, mark, shift in (
        ("auto", "#000000", "D", -0.08),
        ("gd", "#D55E00", "s", 0.08),
    ):
        for k, space in enumerate(spaces):
            found = [
                row["measured"]
                for row in rows
                if (row["d"], row["r"]) == space and row["solver"] == solver
            ]
            known = [one for one in found if one is not None]
            if known:
                middle = statistics.median(known)
                axes.plot([k + shift] * 2, [min(known), max(known)], color=colour, linewidth=1.2)
                axes.plot(
                    k + shift,
                    middle,
                    mark,
                    color=colour,
                    markersize=5,
                    label=solver if k == 0 else None,
                )
    n = rows[0]["n"]
    axes.plot(
        range(len(spaces)),
        [n * r for _, r in spaces],
        "_",
        color="#0072B2",
        markersize=16,
        label="unknowns, n·r",
    )
    for k, (d, r) in enumerate(spaces):
        asked = [
            row["log10_promised"]
            for row in rows
            if (row["d"], row["r"]) == (d, r) and row.get("log10_promised")
        ]
        if asked:
            axes.text(
                k,
                0.98,
                f"$10^{{{statistics.median(asked):.0f}}}$",
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="top",
                fontsize=8,
            )
    axes.set_xticks(
        range(len(spaces)),
        [f"{d}" if d == r else f"{d}, r = {r}" for d, r in spaces],
        rotation=35,
        ha="right",
    )
    top = max(row["measured"] or 1 for row in rows)
    axes.set(
        yscale="log",
        ylim=(2, 12 * top),
        xlabel="d (data in r dimensions)",
        ylabel="width",
        title=f"width that recovers {n} points\nat the top: what the theorem asks for",
    )
    axes.grid(alpha=0.25, axis="y")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.92))


def csv_of(rows: Sequence[Row]) -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
