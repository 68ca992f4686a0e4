"""One self-contained HTML file: what was recovered, beside the truth where it is known."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch

from recollect.records import Record
from recollect.report.figures import error_plot, loss_trace, spectrum_plot
from recollect.report.pictures import data_uri
from recollect.system.files import write_bytes
from recollect.truth.files import Truth
from recollect.truth.images import guess_shape, stretch
from recollect.truth.metrics import NEAR, RECOVERED, Score, psnr, ssim

SHOWN = 200
"""The largest number of pictures on a page: more would make it too large to send."""


@dataclass(frozen=True)
class Pair:
    """A true point and what was recovered for it, both as images if the data are images."""

    number: int
    error: float | None
    true: np.ndarray | None
    recovered: np.ndarray | None
    ssim: float | None = None
    psnr: float | None = None
    confidence: float | None = None


def render(record: Record, truth: Truth | None, score: Score | None) -> str:
    """The page of a reconstruction. The truth and the score are given together, or neither."""
    pairs = image_pairs(record, truth, score, SHOWN)
    sections: dict[str, Any] = {
        "facts": record.facts,
        "score": score,
        "summary": summary(record, score),
        "pairs": [
            {
                "number": pair.number,
                "error": pair.error,
                "ssim": pair.ssim,
                "psnr": pair.psnr,
                "confidence": pair.confidence,
                "true": None if pair.true is None else data_uri(pair.true),
                "recovered": None if pair.recovered is None else data_uri(pair.recovered),
            }
            for pair in pairs
        ],
        "hidden": hidden(record, score) if pairs else 0,
        "trace": loss_trace(record.trace.tolist()),
        "spectrum": None
        if record.singular_values is None
        else spectrum_plot(record.singular_values.tolist(), record.facts.get("rank")),
        "errors": None
        if score is None
        else error_plot(score.errors.tolist(), RECOVERED, score.chance.get("span")),
        "threshold": RECOVERED,
        "near": NEAR,
    }
    return page("report.html.j2", sections)


PRIVATE = "This report shows private data: training inputs, or what was recovered of them."
"""The first line of a page with pictures."""


def shows_private_data(page: str) -> bool:
    """Whether the first line of a page says that the page shows private data."""
    return PRIVATE in page.partition("\n")[0]


def write_page(path: Path, page: str) -> None:
    """Write a page. One that shows private data can be read by its owner alone."""
    write_bytes(path, page.encode(errors="replace"), private=shows_private_data(page))


def page(template: str, sections: Mapping[str, Any]) -> str:
    """Fill in a template of this folder. All inserted values are escaped.

    A page with `pairs` of pictures says in its first line that it shows private data.
    """
    folder = importlib.resources.files("recollect.report")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(
            lambda name: folder.joinpath(name).read_text(encoding="utf-8")
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = _sentence
    private = PRIVATE if sections["pairs"] else ""
    return environment.get_template(template).render(sections, private=private)


def _sentence(text: str) -> str:
    """The text with a capital first letter, unless it begins with the name of a file."""
    return text if "." in text.partition(" ")[0] else text[:1].upper() + text[1:]


def image_pairs(
    record: Record, truth: Truth | None, score: Score | None, most: int | None = None
) -> list[Pair]:
    """At most `most` pairs of images, in order of error, or none if the data are not images.

    Without truth, these are the recovered images alone, in order of confidence.
    """
    if truth is None or score is None:
        shape, sure = record.image_shape or guess_shape(record.inputs.shape[1]), record.confidence
        if shape is None:
            return []
        order = torch.argsort(
            torch.zeros(len(record.inputs)) if sure is None else -sure, stable=True
        )[:most]
        return [
            Pair(k + 1, None, None, image, confidence=None if sure is None else float(sure[k]))
            for k, image in zip(order.tolist(), stretch(record.inputs[order], shape), strict=True)
        ]
    matching, space = score.matching, truth.pixel_space
    order = torch.argsort(matching.distances)[:most]
    i, j = matching.truth[order], matching.found[order]
    if space is None:
        shape = record.image_shape or guess_shape(truth.inputs.shape[1])
        if shape is None:
            return []
        true, recovered = stretch(truth.inputs[i], shape), stretch(record.inputs[j], shape)
    else:
        true, recovered = (
            space.pixels(truth.inputs[i], truth.norms[i]),
            space.pixels(record.inputs[j], truth.norms[i]),
        )
    return [
        Pair(
            int(i[k]) + 1,
            float(matching.distances[order[k]]),
            true[k],
            recovered[k],
            ssim(true[k], recovered[k]),
            psnr(true[k], recovered[k]),
        )
        for k in range(len(order))
    ]


def hidden(record: Record, score: Score | None) -> int:
    """The number of images that a page leaves out."""
    return max(0, (len(record.inputs) if score is None else len(score.matching.found)) - SHOWN)


def _held(record: Record) -> str:
    """A sentence on how many candidates have high confidence, not counting withheld ones."""
    if record.confidence is None:
        return ""
    firm = record.confidence >= 0.5
    for points in record.withheld.values():
        firm[[point for point in points if 0 <= point < len(firm)]] = False
    left_out = "".join(
        f" {len(set(points))} are not counted because {why}."
        for why, points in record.withheld.items()
    )
    return f" The weights hold {int(firm.sum())} of them firmly.{left_out}"


def summary(record: Record, score: Score | None) -> str:
    """A few sentences that claim no more than was observed."""
    if score is None:
        return (
            f"{len(record.inputs)} candidates were found.{_held(record)} Without the training data "
            "nobody can say from this page which of them are real: compare them with your data, or "
            "give it with --truth."
        )
    n = len(score.errors)
    recovered = round(score.recovered * n)
    sentence = (
        f"{recovered} of {n} training points were read back from the weights with an error below "
        f"{RECOVERED:g}."
    )
    lucky = score.chance["span_recovered"]
    if lucky > 0.005:
        sentence += f" Guessing within the span of the data would have found {lucky:.0%} of them."
    if score.missed or score.spurious:
        sentence += (
            f" {score.missed} were not looked for, {score.spurious} candidates match nothing."
        )
    return sentence
