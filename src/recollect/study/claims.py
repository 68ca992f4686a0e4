"""Tests of the claims in the paper's Results and appendix, computed from the table of runs alone.

A claim consists of a statement of the paper, a rule that tests it, and a function that applies the
rule. The verdict is one of: confirmed, qualified (true in part or for some settings), not
confirmed, not measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.study.table import Row, scored

CONFIRMED, QUALIFIED, REFUTED, OPEN = "confirmed", "qualified", "not confirmed", "not measured"
_CLOSE_RATIO = 1.25
"""Two means of ρ count as alike if they differ by at most this ratio, or by at most one standard
deviation of the runs."""
_GUESSING = 0.9
"""A mean ρ above this fraction of the ρ of guessing in the span is no better than guessing."""


@dataclass(frozen=True)
class Judgement:
    figures: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    where: str
    sentence: str
    """The claim in this project's words; `where` says where the paper states it."""
    rule: str
    test: Callable[[Sequence[Row]], Judgement]


def judge_claims(table: Sequence[Row]) -> list[tuple[Claim, Judgement]]:
    rows = scored(table)
    return [(claim, claim.test(rows)) for claim in CLAIMS]


def markdown(found: Sequence[tuple[Claim, Judgement]], runs: int, sources: Sequence[str]) -> str:
    lines = [
        "# The paper's claims, tested",
        "",
        f"Made by `recollect claims` from {runs} runs ({', '.join(sources)}); no line is written "
        "by hand.",
        "ρ is the mean over training and reconstruction seeds, signed unless it says otherwise; "
        "runs of gradient",
        "descent as the paper has it, and of `auto` where it is named. Two means are alike if they "
        "differ by less than",
        f"a factor of {_CLOSE_RATIO} or by one standard deviation of their runs.",
        "",
        "| where | claim | how it is tested | measured | verdict |",
        "|---|---|---|---|---|",
    ]
    for claim, what in found:
        cells = (claim.where, claim.sentence, claim.rule, what.figures, f"**{what.verdict}**")
        lines.append(
            "| "
            + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells)
            + " |"
        )
    return "\n".join(lines) + "\n"


# Helper functions of the tests.


def _where(table: Sequence[Row], **values: Any) -> list[Row]:
    return [row for row in table if all(row[name] == value for name, value in values.items())]


def _gd(table: Sequence[Row], method: str, **values: Any) -> list[Row]:
    return _where(table, solver="gd", method=method, **values)


@dataclass(frozen=True)
class _Mean:
    value: float
    deviation: float
    runs: int

    def like(self, other: _Mean) -> bool:
        apart = abs(self.value - other.value)
        ratio = max(self.value, other.value) / max(min(self.value, other.value), 1e-300)
        return apart <= max(self.deviation, other.deviation) or ratio <= _CLOSE_RATIO


def _by_width(rows: Sequence[Row], measure: str = "rho") -> dict[int, _Mean]:
    values: dict[int, list[float]] = {}
    for row in rows:
        values.setdefault(row["width"], []).append(row[measure])
    return {
        width: _Mean(
            statistics.fmean(some), statistics.stdev(some) if len(some) > 1 else 0.0, len(some)
        )
        for width, some in sorted(values.items())
    }


def _pairs(
    a: Sequence[Row], b: Sequence[Row], measure: str = "rho"
) -> dict[int, tuple[_Mean, _Mean]]:
    first, second = _by_width(a, measure), _by_width(b, measure)
    return {width: (first[width], second[width]) for width in first if width in second}


def _telling(
    pairs: dict[int, tuple[_Mean, _Mean]], rows: Sequence[Row]
) -> dict[int, tuple[_Mean, _Mean]]:
    """The pairs in which at least one mean is better than guessing: two methods that both fail
    cannot be compared."""
    chance = _by_width(rows, "chance_span")
    return {
        width: (a, b)
        for width, (a, b) in pairs.items()
        if min(a.value, b.value) < _GUESSING * chance[width].value
    }


def _told(pairs: dict[int, tuple[_Mean, _Mean]]) -> str:
    told = ", ".join(
        f"p = {width}: {a.value:.3g} / {b.value:.3g}" for width, (a, b) in pairs.items()
    )
    return told or OPEN


def _share(good: int, of: int, *, figures: str, whole: bool = True) -> Judgement:
    """The verdict for a rule that holds in `good` out of `of` cases.

    `whole` is False if part of the claim was not measured: the rest alone does not confirm it.
    """
    if not of:
        return Judgement("–", OPEN)
    return Judgement(
        figures, CONFIRMED if good == of and whole else QUALIFIED if 2 * good >= of else REFUTED
    )


def _crossing(means: dict[int, _Mean], level: float) -> float | None:
    """The width at which ρ falls below the level, by logarithmic interpolation between widths."""
    widths = list(means)
    for left, right in itertools.pairwise(widths):
        a, b = means[left].value, means[right].value
        if a > level >= b:
            t = (math.log(a) - math.log(level)) / (math.log(a) - math.log(max(b, 1e-300)))
            return left * math.pow(right / left, t)
    return None


def _synthetic(table: Sequence[Row], **values: Any) -> list[Row]:
    """The runs on synthetic data of exactly the paper's sizes."""
    return _where(table, dataset="synthetic", victim="mlp", n=100, dim=60, rank=30, **values)


# The claims.


def _subspace_is_found(table: Sequence[Row]) -> Judgement:
    victims = {(row["width"], row["depth"], row["training_seed"]): row for row in _synthetic(table)}
    right = sum(row["gap_rank"] == row["rank"] for row in victims.values())
    return _share(right, len(victims), figures=f"{right} of {len(victims)} victims")


def _as_good_as_true(table: Sequence[Row]) -> Judgement:
    rows = _synthetic(table, parameters="last", depth=2)
    pairs = _pairs(_gd(rows, "subspace"), _gd(rows, "true"))
    return _share(sum(a.like(b) for a, b in pairs.values()), len(pairs), figures=_told(pairs))


def _outperforms_full(table: Sequence[Row]) -> Judgement:
    rows = _synthetic(table, parameters="last", depth=2)
    pairs = _pairs(_gd(rows, "subspace"), _gd(rows, "full"))
    return _share(
        sum(a.value < b.value for a, b in pairs.values()), len(pairs), figures=_told(pairs)
    )


def _half_the_width(table: Sequence[Row]) -> Judgement:
    rows = _synthetic(table, parameters="last", depth=2)
    if len(_pairs(_gd(rows, "full"), _gd(rows, "subspace"))) < 2:
        return Judgement("–", OPEN)
    told, ratios, ahead = [], [], False
    for measure, chance in (("rho", "chance_span"), ("rho_up_to_sign", "chance_span_up_to_sign")):
        for share in (0.75, 0.5):
            level = share * statistics.fmean(row[chance] for row in rows)
            full, sub = (
                _crossing(_by_width(_gd(rows, one), measure), level) for one in ("full", "subspace")
            )
            words = f"{'ρ' if measure == 'rho' else 'ρ up to sign'} < {level:.2f}"
            if full and sub:
                ratios.append(full / sub)
                told.append(f"{words}: {sub:.0f} against {full:.0f}, ratio {full / sub:.1f}")
            else:
                ahead = ahead or sub is not None
                told.append(f"{words}: {_or_never(sub)} against {_or_never(full)}")
    if not ratios:  # if full space reaches no level, there is at best a bound on the ratio
        return Judgement("; ".join(told), QUALIFIED if ahead else REFUTED)
    good = sum(1.5 <= ratio <= 3 for ratio in ratios)
    return _share(good, len(ratios), figures="; ".join(told))


def _or_never(width: float | None) -> str:
    return "not reached" if width is None else f"{width:.0f}"


def _five_layers(table: Sequence[Row]) -> Judgement:
    told, good, of = [], 0, 0
    for n in sorted({row["n"] for row in table if row["dataset"] == "cifar10"}):
        rows = _where(table, dataset="cifar10", n=n, parameters="last")
        pairs = _pairs(_gd(rows, "subspace", depth=5), _gd(rows, "subspace", depth=2))
        pairs = _telling(pairs, rows)
        if pairs:
            width, (deep, flat) = max(pairs.items())
            auto = _by_width(_where(rows, solver="auto", depth=5)).get(width)
            chance = statistics.fmean(row["chance_span"] for row in rows)
            good, of = good + (deep.value < 0.5 * chance), of + 1
            ours = "" if auto is None else f", `auto` {auto.value:.3g}"
            told.append(
                f"n = {n}, p = {width}: {deep.value:.3g} (2 layers {flat.value:.3g}{ours}; "
                f"guessing {chance:.3g})"
            )
    return _share(good, of, figures="; ".join(told))


def _moderate_and_large(table: Sequence[Row]) -> Judgement:
    told, good, of = [], 0, 0
    for n, depth in _cifar_settings(table):
        rows = _where(table, dataset="cifar10", n=n, depth=depth)
        pairs = _pairs(
            _gd(rows, "subspace", parameters="all"), _gd(rows, "subspace", parameters="last")
        )
        if len(pairs) > 1:
            small, large = min(pairs), max(pairs)
            good += pairs[small][0].value < pairs[small][1].value
            good += pairs[large][0].value >= pairs[large][1].value
            of += 2
            told.append(
                f"n = {n}, {depth} layers, all / last: "
                f"{_told({w: pairs[w] for w in (small, large)})}"
            )
    return _share(good, of, figures="; ".join(told))


def _cifar_settings(table: Sequence[Row]) -> list[tuple[int, int]]:
    return sorted({(row["n"], row["depth"]) for row in table if row["dataset"] == "cifar10"})


def _last_is_faster(table: Sequence[Row]) -> Judgement:
    told, good, of = [], 0, 0
    for n, depth in _cifar_settings(table):
        rows = _where(table, dataset="cifar10", n=n, depth=depth)
        every, last = (_gd(rows, "subspace", parameters=one) for one in ("all", "last"))
        # Times compare only on one kind of device.
        settings = {(row["width"], row["device"]) for row in every}
        settings &= {(row["width"], row["device"]) for row in last}
        if settings:
            width, device = max(settings)
            slow, fast = (
                statistics.median(
                    row["attack_seconds"] for row in _where(some, width=width, device=device)
                )
                for some in (every, last)
            )
            good, of = good + (slow >= 2 * fast), of + 1
            told.append(f"n = {n}, {depth} layers, p = {width}: {slow:.3g} s against {fast:.3g} s")
    return _share(good, of, figures="; ".join(told))


def _last_is_enough(table: Sequence[Row]) -> Judgement:
    told, good, of = [], 0, 0
    for n, depth in _cifar_settings(table):
        rows = _where(table, dataset="cifar10", n=n, depth=depth)
        last = _by_width(_gd(rows, "subspace", parameters="last"))
        others = [
            _by_width(_gd(rows, method, parameters="all"))
            for method in ("full", "subspace", "true")
        ]
        widths = set(last).intersection(*others)
        if widths:
            width = max(widths)
            best = min((some[width] for some in others), key=lambda mean: mean.value)
            fine = last[width].value <= best.value or last[width].like(best)
            good, of = good + fine, of + 1
            told.append(
                f"n = {n}, {depth} layers, p = {width}: {last[width].value:.3g} / {best.value:.3g}"
            )
    return _share(good, of, figures="; ".join(told))


def _last_like_all(table: Sequence[Row]) -> Judgement:
    told, good, of, whole = [], 0, 0, True
    for name, some in (
        ("CIFAR-10, n = 10", _where(table, dataset="cifar10", n=10)),
        ("synthetic", _synthetic(table)),
    ):
        rows = _where(some, depth=2)
        for method in ("subspace", "true"):
            pairs = _pairs(
                _gd(rows, method, parameters="last"), _gd(rows, method, parameters="all")
            )
            telling = _telling(pairs, rows)
            good, of = good + sum(a.like(b) for a, b in telling.values()), of + len(telling)
            whole = whole and bool(telling)
            told.append(f"{name}, {method}: {_told(pairs)}")
    return _share(good, of, figures="; ".join(told), whole=whole)


def _full_like_subspace(table: Sequence[Row]) -> Judgement:
    told, good, of, whole = [], 0, 0, True
    cifar = _where(table, dataset="cifar10", n=10)
    for name, some, alike in (
        ("CIFAR-10, n = 10", cifar, True),
        ("synthetic", _synthetic(table), False),
    ):
        rows = _where(some, depth=2, parameters="all")
        pairs = _pairs(_gd(rows, "full"), _gd(rows, "subspace"))
        telling = _telling(pairs, rows)
        good += sum(a.like(b) is alike for a, b in telling.values())
        of, whole = of + len(telling), whole and bool(telling)
        told.append(f"{name}: {_told(pairs)}")
    return _share(good, of, figures="; ".join(told), whole=whole)


def _width_helps(table: Sequence[Row]) -> Judgement:
    rows = _where(table, dataset="cifar10", n=100, depth=2, parameters="last")
    told, good, of = [], 0, 0
    for name, some in (("Alg. 2", _gd(rows, "subspace")), ("auto", _where(rows, solver="auto"))):
        means = _by_width(some)
        steps = list(itertools.pairwise(means.values()))
        if name == "Alg. 2":
            good, of = sum(b.value < a.value for a, b in steps), len(steps)
        if means:
            told.append(
                f"{name}: "
                + ", ".join(f"p = {width}: {mean.value:.3g}" for width, mean in means.items())
            )
    return _share(good, of, figures="; ".join(told))


def _thousand(table: Sequence[Row]) -> Judgement:
    rows = _where(table, dataset="cifar10", n=100, depth=2, width=1000)
    told, best, missing = [], math.inf, False
    for parameters in ("last", "all"):
        for name, some in (
            ("Alg. 2", _gd(rows, "subspace")),
            ("auto", _where(rows, solver="auto")),
        ):
            here = _where(some, parameters=parameters)
            if here:
                closest = statistics.fmean(row["rho_closest"] for row in here)
                told.append(f"{name}, {parameters}: {closest:.3g}")
                best = min(best, closest) if name == "Alg. 2" else best
            elif name == "Alg. 2":  # the paper does not say whether it shows last or all
                told.append(f"{name}, {parameters}: not measured")
                missing = True
    known = [row["chance_other_points"] for row in rows if row["chance_other_points"] is not None]
    if not known or best == math.inf:
        return Judgement(", ".join(told) if rows else "–", OPEN)
    chance = statistics.fmean(known)
    figures = f"{', '.join(told)}; another training image in its place: {chance:.3g}"
    return Judgement(figures, CONFIRMED if best < 0.5 * chance else OPEN if missing else REFUTED)


CLAIMS = (
    Claim(
        "Fig. 1",
        "Reconstructions improve as the network gets wider (n = 100).",
        "Mean ρ of Alg. 2 falls from each width to the next.",
        _width_helps,
    ),
    Claim(
        "Results, Fig. 2 left",
        "ΔW₁ shows the 30-dimensional subspace of the data.",
        "The gap rule finds the rank of the data in every synthetic victim.",
        _subspace_is_found,
    ),
    Claim(
        "Results, Fig. 2 right",
        "Alg. 2 does as well as with the true subspace.",
        "Mean ρ alike at every width (subspace / true).",
        _as_good_as_true,
    ),
    Claim(
        "Results, Fig. 2 right",
        "Subspace methods do better than full space.",
        "Smaller mean ρ at every width (subspace / full).",
        _outperforms_full,
    ),
    Claim(
        "Results, Fig. 2 right",
        "They need about half the width.",
        "Widths at which ρ falls to 3/4 and to 1/2 of guessing: ratio between 1.5 and 3.",
        _half_the_width,
    ),
    Claim(
        "Results, Fig. 3",
        "Five-layer networks still give up their data.",
        "At the largest width, Alg. 2 below half of what guessing scores. Widths at which "
        "two layers do no better than guessing either do not count.",
        _five_layers,
    ),
    Claim(
        "Results, Fig. 4",
        "At moderate widths all parameters help; at large ones the last layer is better.",
        "Alg. 2: smaller ρ with all parameters at the smallest width, with the last layer at the "
        "largest.",
        _moderate_and_large,
    ),
    Claim(
        "Results, Fig. 4",
        "The last layer is considerably faster.",
        "Median seconds of a run at the largest width measured on one kind of device: a factor of "
        "2 or more. (Here the Gram of all layers is formed layer by layer; the paper's conjugate "
        "gradients are slower.)",
        _last_is_faster,
    ),
    Claim(
        "Fig. 4, caption",
        "Alg. 2 on the last layer does as well as any method on all parameters.",
        "At the largest width, no worse than the best of the three, or alike (last / best of all).",
        _last_is_enough,
    ),
    Claim(
        "Appendix",
        "Subspace methods do alike with the last layer and with both.",
        "Mean ρ alike at every width, two layers (last / all). Widths at which both do no better "
        "than guessing do not "
        "count.",
        _last_like_all,
    ),
    Claim(
        "Appendix",
        "With both layers full space does as well as the subspace on CIFAR-10, and not on "
        "synthetic data.",
        "Mean ρ alike at every width on CIFAR-10 (n = 10), and not alike on synthetic data (full / "
        "subspace). Widths "
        "at which both do no better than guessing do not count.",
        _full_like_subspace,
    ),
    Claim(
        "Appendix, last figure",
        "Images are recognisable at n = 100, p = 1000.",
        "Mean distance to the closest true image below half of another training image's.",
        _thousand,
    ),
)
