"""The figures that can be made, the plans of their tables, and how each figure is drawn."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from recollect.errors import OptionError
from recollect.examine.subspace import spectrum
from recollect.shapes import Float, Tensor
from recollect.study import guarantees
from recollect.study.figures import MEASURES, Panel, Strip, gallery, quality, spectral_decay
from recollect.study.job import Job
from recollect.study.store import Store
from recollect.study.table import Row
from recollect.system.files import read_tensors
from recollect.system.progress import Progress
from recollect.truth.data.dataset import Dataset
from recollect.truth.match import signed_distances
from recollect.truth.recipe import Recipe

PLANS = Path(__file__).parent / "plans"


@dataclass(frozen=True)
class Drawing:
    """A figure of panels: the plans of its table, the plan of a quick version, and the panels."""

    plans: tuple[str, ...]
    quick: str
    panels: tuple[Panel, ...]
    columns: int

    def draw(self, table: Sequence[Row]) -> dict[str, bytes]:
        """The contents of the files by the ending of their names: for ρ, and for ρ up to sign."""
        files: dict[str, bytes] = {}
        for measure in MEASURES:
            made = quality(table, self.panels, columns=self.columns, measure=measure)
            ending = "" if measure == "rho" else "-up-to-sign"
            files |= {f"{ending}{kind}": content for kind, content in made.items()}
        return files


def _depths(parameters: Sequence[str], depths: Sequence[int], **where: object) -> tuple[Panel, ...]:
    shown = {"last": "last layer", "all": "all layers"}
    return tuple(
        Panel(f"{depth} layers, {shown[one]}", {"depth": depth, "parameters": one, **where})
        for depth in depths
        for one in parameters
    )


def _both(title: str, where: Mapping[str, object]) -> tuple[Panel, ...]:
    return tuple(Panel(title, where, scale) for scale in ("linear", "log"))


DRAWINGS: dict[str, Drawing] = {
    "synthetic": Drawing(
        ("synthetic",),
        "synthetic-quick",
        _both(
            "synthetic data, two layers, last layer", {"dataset": "synthetic", "parameters": "last"}
        ),
        2,
    ),
    "depth": Drawing(("cifar10-n100-depth",), "depth-quick", _depths(["last"], [2, 5]), 2),
    "parameters": Drawing(
        ("cifar10-n100-depth",), "depth-quick", _depths(["last", "all"], [2, 3, 5]), 2
    ),
    "n10": Drawing(("cifar10-n10",), "depth-quick", _depths(["last", "all"], [2, 3, 5]), 2),
    "n100": Drawing(
        ("cifar10-n100",),
        "depth-quick",
        _both("two layers, last layer", {"depth": 2, "parameters": "last"}),
        2,
    ),
    "appendix": Drawing(
        ("cifar10-n10", "synthetic", "synthetic-all"),
        "appendix-quick",
        tuple(
            Panel(f"{name}, {words}", {"outputs": outputs, "depth": 2, "parameters": parameters})
            for name, outputs in (("images", 10), ("synthetic data", 1))
            for parameters, words in (("last", "last layer"), ("all", "both layers"))
        ),
        2,
    ),
}
PICTURES = {"images": 1, "grid": 2}
"""Figures made of images, and how many images of each class they show."""
MEASURED = ("spectrum", "guarantees")
"""Figures that are computed directly, without a plan."""
NAMES = (*MEASURED, *DRAWINGS, *PICTURES)


def check_name(name: str) -> None:
    if name not in NAMES:
        raise OptionError(
            f"expected one of the figures {', '.join(NAMES)}, got {name!r}; choose one of those"
        )


def plans_of(name: str, *, quick: bool) -> tuple[Path, ...]:
    if name in PICTURES:
        plans: tuple[str, ...] = ("images-quick" if quick else "images",)
    else:
        plans = (DRAWINGS[name].quick,) if quick else DRAWINGS[name].plans
    return tuple(PLANS / f"{plan}.toml" for plan in plans)


# Figure 2, left.


def spectra(progress: Progress, *, quick: bool) -> tuple[bytes, dict[str, bytes]]:
    """The table of singular values and the figure. Training its three victims takes seconds."""
    n, dim, rank, width = (20, 20, 10, 500) if quick else (100, 60, 30, 1000)
    found: dict[int, list[float]] = {}
    with progress("training", 3) as report:
        for seed in range(3):
            recipe = Recipe(
                dataset="synthetic",
                dtype="float64",
                n=n,
                dim=dim,
                rank=rank,
                width=width,
                seed=seed,
            )
            victim = recipe.make(recipe.data(), torch.device("cpu")).victim
            found[seed] = spectrum(victim).singular_values.tolist()
            report(seed + 1, f"seed {seed}")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["training_seed", "index", "singular_value", "n", "dim", "rank", "width"])
    writer.writerows(
        [seed, k + 1, repr(value), n, dim, rank, width]
        for seed, values in found.items()
        for k, value in enumerate(values)
    )
    return text.getvalue().encode(), spectral_decay(found, rank, width)


def bounds_beside_measurements(
    progress: Progress, *, quick: bool
) -> tuple[bytes, dict[str, bytes]]:
    """The table and the figure of `guarantees.py`."""
    rows = guarantees.measure(progress, guarantees.QUICK if quick else guarantees.Sizes())
    return guarantees.csv_of(rows), guarantees.draw(rows)


# Figure 1 and the image grid.


def pictures(
    name: str, store: Store, jobs: Sequence[Job], sources: Mapping[str, str]
) -> dict[str, bytes]:
    """The first images of each class, and the reconstruction closest to each (as in the paper's
    caption), one row per job."""
    data = jobs[0].recipe.data(sources)
    if data.pixel_space is None:
        raise OptionError(
            f"expected a data set of images, got {jobs[0].recipe.dataset}; choose another plan"
        )
    chosen = _first_of_each(data, PICTURES[name])
    rho = {row[0].name: row[1]["rho"] for row in store.results()}
    strips = []
    done = [job for job in jobs if store.has(job)]
    for job in sorted(done, key=lambda job: (job.attack_name == "exact", job.recipe.width)):
        points = read_tensors(store.points(job))[0]["inputs"].double()
        shown = data.pixel_space.pixels(_closest(data.inputs[chosen], points), data.norms[chosen])
        who = "auto" if job.attack_name == "exact" else "Alg. 2"
        strips.append(Strip(f"{who}, p = {job.recipe.width}\nρ = {rho[job.name]:.3f}", shown))
    return gallery(data.pixel_space.pixels(data.inputs[chosen], data.norms[chosen]), strips)


def _first_of_each(data: Dataset, count: int) -> list[int]:
    """The first `count` images of each class. With fewer than ten classes there are more per class,
    so that there are about 10·count in all."""
    labels, classes = data.targets.argmax(1), data.targets.shape[1]
    most = max(count, -(-10 * count // classes))
    return [int(k) for label in range(classes) for k in (labels == label).nonzero()[:most, 0]]


def _closest(truth: Float[Tensor, "k d"], found: Float[Tensor, "n d"]) -> Float[Tensor, "k d"]:
    return found[signed_distances(truth, found).argmin(1)]
