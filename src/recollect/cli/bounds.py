"""`recollect bounds`: the guarantees for random features, as numbers."""

from __future__ import annotations

import math
from typing import Any

from cyclopts import App

from recollect.cli.common import Count, Json, app
from recollect.cli.console import Terminal
from recollect.errors import OptionError

bounds = App(
    name="bounds",
    help="How wide a random-feature model must be, by the paper's lemma, theorem and corollary.",
)
app.command(bounds)
_TEN = math.log(10)
_LARGEST = 1e6
"""Limit of |log₁₀ C|. It is far beyond any use, and the logarithm of the width still has nine
digits."""


@bounds.command
def lemma(
    *,
    dim: Count,
    activation: str = "tanh",
    epsilon: float | None = None,
    delta: float | None = None,
    width: Count | None = None,
    json: Json = False,
) -> int:
    """From two of ε, δ and the width, find the third such that |k_p − k_∞| ≤ ε everywhere with
    probability 1 − δ.

    Example: recollect bounds lemma --activation tanh --dim 10 --epsilon 0.1 --delta 0.05

    Parameters
    ----------
    dim
        d, the dimension of the inputs, which lie on a sphere of radius √d.
    activation
        tanh, sigmoid, sine, erf or clipped-relu; a bounded one.
    epsilon
        The largest deviation of the kernel.
    delta
        The probability of failing.
    width
        p, the number of random features.
    """
    from recollect.theory.bounds import Lemma
    from recollect.theory.kernel import bounded

    terminal, phi = Terminal(json=json), bounded(activation)
    known = Lemma(dim, phi.M, phi.L)
    if [epsilon, delta, width].count(None) != 1:
        given = {"--epsilon": epsilon, "--delta": delta, "--width": width}
        raise OptionError(
            f"expected two of --epsilon, --delta and --width, got {_named(given)}; give two, the "
            "third is the answer"
        )
    log_epsilon = None if epsilon is None else _log("--epsilon", epsilon)
    log_delta = None if delta is None else _log("--delta", delta)
    if width is not None and width < 1:
        raise OptionError(f"expected --width of at least 1, got {width}; give a number of features")
    log_width = None if width is None else math.log(width)
    if log_epsilon is None:
        assert width is not None
        assert log_delta is not None
        log_epsilon = known.log_epsilon(width, log_delta)
    elif log_delta is None:
        assert width is not None
        log_delta = known.log_delta(width, log_epsilon)
        if log_delta < 0:
            known.check(log_epsilon, log_delta)
    else:
        log_width = known.log_width(log_epsilon, log_delta)
    assert log_width is not None
    facts = {
        **_facts(activation, dim),
        "epsilon": math.exp(log_epsilon) if epsilon is None else epsilon,
        "delta": _exp(log_delta) if delta is None else delta,
        "log10_delta": log_delta / _TEN if math.isfinite(log_delta) else None,
        "net_radius": _exp(known.log_best_radius(log_width, log_epsilon)),
        **_wide(log_width),
        "vacuous": log_delta >= 0 or log_epsilon >= math.log(2 * phi.M**2),
    }
    if width is not None:
        facts["width"] = width
    terminal.table({name: value for name, value in facts.items() if value is not None})
    if facts["vacuous"]:
        terminal.say("· This says nothing: |k_p − k_∞| ≤ 2M² always, and no probability exceeds 1.")
    terminal.answer(facts)
    return 0


@bounds.command
def theorem(
    *,
    dim: Count,
    alpha: float,
    alpha_hat: float,
    c: float,
    delta: float,
    activation: str = "tanh",
    constant: float | None = None,
    log10_constant: float | None = None,
    separation: float | None = None,
    json: Json = False,
) -> int:
    """The width from which every training point has a reconstructed one within Δ, with probability
    1 − δ.

    Example: recollect bounds theorem --dim 2 --alpha 3 --alpha-hat 3 --c 0.5 --delta 0.05
    --separation 1

    Parameters
    ----------
    dim
        d, the dimension of the inputs.
    alpha
        ‖α‖₁ of θ* = Φᵀα; `recollect train --victim rf` writes it.
    alpha_hat
        ‖α̂‖₁ of what was found. It depends on the width: give what an attack found, or a bound you
        trust.
    c
        min |α_i|.
    delta
        The probability of failing.
    activation
        tanh, sigmoid, sine, erf or clipped-relu.
    constant
        C, which depends on Δ and on c/(‖α‖₁ + ‖α̂‖₁).
    log10_constant
        log₁₀ C, if C is too large to write.
    separation
        Δ, the distance between training points: C is then bounded from above by an explicit g_j
        (dimensions 2 and 3).
    """
    return _theorem(
        dim,
        dim,
        alpha,
        alpha_hat,
        c,
        delta,
        activation,
        (constant, log10_constant, separation),
        json,
    )


@bounds.command
def corollary(
    *,
    dim: Count,
    rank: Count,
    alpha: float,
    alpha_hat: float,
    c: float,
    delta: float,
    activation: str = "tanh",
    constant: float | None = None,
    log10_constant: float | None = None,
    separation: float | None = None,
    json: Json = False,
) -> int:
    """The theorem for data in r of d dimensions: r instead of d, and the separation scaled by
    √(r/d).

    Example: recollect bounds corollary --dim 60 --rank 2 --alpha 3 --alpha-hat 3 --c 0.5 --delta
    0.05 --separation 5

    Parameters
    ----------
    dim
        d, the dimension of the inputs.
    rank
        r, the dimension of the subspace that the data lie in.
    alpha
        ‖α‖₁ of θ* = Φᵀα.
    alpha_hat
        ‖α̂‖₁ of what was found.
    c
        min |α_i|.
    delta
        The probability of failing.
    activation
        tanh, sigmoid, sine, erf or clipped-relu.
    constant
        C, for the separation √(r/d)Δ in r dimensions.
    log10_constant
        log₁₀ C, if C is too large to write.
    separation
        Δ in d dimensions: C is then bounded from above by an explicit g_j (ranks 2 and 3).
    """
    return _theorem(
        dim,
        rank,
        alpha,
        alpha_hat,
        c,
        delta,
        activation,
        (constant, log10_constant, separation),
        json,
    )


def _theorem(
    d: int,
    r: int,
    alpha: float,
    alpha_hat: float,
    c: float,
    delta: float,
    activation: str,
    given: tuple[float | None, float | None, float | None],
    json: bool,
) -> int:
    from recollect.theory.bounds import (
        Lemma,
        log_recovery_epsilon,
        log_recovery_width,
        subspace_separation,
    )
    from recollect.theory.constant import log_C
    from recollect.theory.kernel import bounded

    terminal, phi = Terminal(json=json), bounded(activation)
    constant, log10_constant, separation = given
    if given.count(None) != 2:
        names = dict(zip(("--constant", "--log10-constant", "--separation"), given, strict=True))
        raise OptionError(
            f"expected one of --constant, --log10-constant and --separation, got {_named(names)}; "
            "give --separation in 2 or 3 dimensions, a constant of your own in others"
        )
    log_recovery_epsilon(0.0, alpha, alpha_hat, c)  # Raises an error if these are wrong.
    facts: dict[str, Any] = _facts(activation, d) | ({"rank": r} if r != d else {})
    scaled = subspace_separation(1.0, d, r)
    if separation is not None:
        tolerance = c / (4 * (alpha + alpha_hat))
        log_constant = log_C(activation, r, scaled * separation, tolerance)
        facts |= {
            "separation": separation,
            "separation_used": scaled * separation,
            "constant_is": "an upper bound",
        }
    else:
        if log10_constant is not None and not abs(log10_constant) <= _LARGEST:
            raise OptionError(
                f"expected --log10-constant between −{_LARGEST:g} and {_LARGEST:g}, got "
                f"{log10_constant:g}; "
                "give the logarithm of C, not C"
            )
        log_constant = (
            _log("--constant", constant) if constant is not None else _TEN * (log10_constant or 0.0)
        )
    known, log_delta = Lemma(r, phi.M, phi.L), _log("--delta", delta)
    log_epsilon = log_recovery_epsilon(log_constant, alpha, alpha_hat, c)
    log_width = log_recovery_width(
        known, log_C=log_constant, alpha=alpha, alpha_hat=alpha_hat, c=c, log_delta=log_delta
    )
    facts |= {
        "alpha": alpha,
        "alpha_hat": alpha_hat,
        "c": c,
        "delta": delta,
        "log10_constant": log_constant / _TEN,
        "log10_epsilon": log_epsilon / _TEN,
        **_wide(log_width),
    }
    terminal.table({name: value for name, value in facts.items() if value is not None})
    terminal.answer(facts)
    return 0


def _named(given: dict[str, float | None]) -> str:
    """The options that were given, in words."""
    return " and ".join(name for name, value in given.items() if value is not None) or "none"


def _facts(activation: str, d: int) -> dict[str, Any]:
    from recollect.theory.kernel import bounded

    phi = bounded(activation)
    return {"activation": activation, "dim": d, "M": phi.M, "L": phi.L}


def _wide(log_width: float) -> dict[str, Any]:
    """The width, or None if it is too large for a float, and its logarithm in any case."""
    from recollect.theory.bounds import whole

    return {"width": whole(log_width), "log10_width": log_width / _TEN}


def _exp(log_value: float) -> float | None:
    return math.exp(log_value) if log_value < 700 else None


def _log(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"expected {name} > 0, got {value:g}; give a positive number")
    return math.log(value)
