"""The lemma, the theorem and the corollary against mpmath, their own inverses, and common sense."""

from __future__ import annotations

import json
import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.cli import main
from recollect.errors import OptionError
from recollect.theory.bounds import (
    Lemma,
    log_recovery_epsilon,
    log_recovery_width,
    subspace_separation,
    whole,
)
from recollect.theory.constant import log_C
from recollect.theory.kernel import bounded

epsilons = st.floats(1e-6, 1.9)
deltas = st.floats(1e-12, 0.99)
sizes = st.floats(-3, 3).map(math.exp)
"""M and L, drawn freely: all activations here have M = 1, which would hide a wrong power."""
lemmas = st.builds(Lemma, st.integers(1, 5000), sizes, sizes)


def paper_limit(lemma: Lemma, epsilon: float) -> mpmath.mpf:
    """eq:delta_condition, letter by letter."""
    d, M, L, eps = (mpmath.mpf(value) for value in (lemma.d, lemma.M, lemma.L, epsilon))
    return 4 * (1 + 2 * d) * L * M / (mpmath.sqrt(d) * eps)


def allowed(lemma: Lemma, epsilon: float, delta: float) -> bool:
    return bool(delta <= paper_limit(lemma, epsilon))


def lemma_of(name: str, d: int) -> Lemma:
    return Lemma(d, bounded(name).M, bounded(name).L)


def paper_width(d: int, M: float, L: float, epsilon: mpmath.mpf, delta: float) -> mpmath.mpf:
    """eq:p_condition, letter by letter, in fifty digits."""
    d, M, L, delta = (mpmath.mpf(value) for value in (d, M, L, delta))
    inner = mpmath.log((2 + 4 * d) / delta) + 2 * d / (2 * d + 1) * mpmath.log(
        6 * L * M / (mpmath.sqrt(d) * epsilon)
    )
    return 8 * M**4 * (2 * d + 1) / epsilon**2 * inner


@settings(max_examples=100)
@given(lemma=lemmas, epsilon=epsilons, delta=deltas)
def test_the_lemma_agrees_with_fifty_digits(lemma: Lemma, epsilon: float, delta: float) -> None:
    if not allowed(lemma, epsilon, delta):
        with pytest.raises(OptionError, match="δ of at most"):
            lemma.log_width(math.log(epsilon), math.log(delta))
        return
    with mpmath.workdps(50):
        exact = paper_width(lemma.d, lemma.M, lemma.L, mpmath.mpf(epsilon), delta)
        found = mpmath.exp(mpmath.mpf(lemma.log_width(math.log(epsilon), math.log(delta))))
        assert abs(found / exact - 1) < 1e-12


@given(lemma=lemmas, delta=deltas)
def test_where_the_lemma_ends(lemma: Lemma, delta: float) -> None:
    """At the ε whose limit is this δ: just below it is answered, just above refused."""
    epsilon = float(paper_limit(lemma, 1.0) / delta)
    lemma.log_width(math.log(epsilon), math.log(delta * (1 - 1e-9)))
    with pytest.raises(OptionError, match="δ of at most"):
        lemma.log_width(math.log(epsilon), math.log(delta * (1 + 1e-9)))


@settings(max_examples=100)
@given(
    lemma=lemmas,
    delta=deltas,
    log_C=st.floats(-5, 2000),
    alpha=st.floats(0.1, 1e6),
    more=st.floats(0, 1e6),
    share=st.floats(1e-6, 1),
)
def test_the_theorem_agrees_with_fifty_digits(
    lemma: Lemma, delta: float, log_C: float, alpha: float, more: float, share: float
) -> None:
    """thm:finite_recon_proof as it is printed, not by way of the lemma; widths of thousands of
    digits too."""
    c = share * alpha
    options = {
        "log_C": log_C,
        "alpha": alpha,
        "alpha_hat": more,
        "c": c,
        "log_delta": math.log(delta),
    }
    with mpmath.workdps(50):
        C, S = mpmath.exp(mpmath.mpf(log_C)), mpmath.mpf(alpha) + mpmath.mpf(more)
        M, L, D, c_ = (mpmath.mpf(value) for value in (lemma.M, lemma.L, lemma.d, c))
        limit = 16 * C * (1 + 2 * D) * L * M * S**2 / (mpmath.sqrt(D) * c_**2)
        if mpmath.mpf(delta) > limit * (1 + mpmath.mpf(10) ** -12):
            with pytest.raises(OptionError, match="δ of at most"):
                log_recovery_width(lemma, **options)
            return
        if mpmath.mpf(delta) > limit * (1 - mpmath.mpf(10) ** -12):
            return
        logs = mpmath.log((2 + 4 * D) / mpmath.mpf(delta))
        logs += 2 * D / (2 * D + 1) * mpmath.log(24 * C * L * M * S**2 / (mpmath.sqrt(D) * c_**2))
        exact = 128 * C**2 * M**4 * (2 * D + 1) * S**4 / c_**4 * logs
        # The logarithm is what is computed: where it is in the thousands, its rounding is 1e-12 of
        # the width.
        error = abs(mpmath.mpf(log_recovery_width(lemma, **options)) - mpmath.log(exact))
        assert error < 1e-12 * max(1, log_C / 100)


@given(lemma=lemmas, width=st.floats(1, 1e15), delta=deltas)
def test_epsilon_and_delta_are_the_inverses(lemma: Lemma, width: float, delta: float) -> None:
    try:
        log_epsilon = lemma.log_epsilon(width, math.log(delta))
    except OptionError:
        return  # so narrow that the lemma does not speak
    assert lemma.log_width(log_epsilon, math.log(delta)) == pytest.approx(math.log(width), abs=1e-9)
    assert lemma.log_delta(width, log_epsilon) == pytest.approx(math.log(delta), rel=1e-6, abs=1e-6)


@given(lemma=lemmas, epsilon=epsilons, delta=deltas, factor=st.floats(1.01, 100))
def test_more_is_asked_for_more(lemma: Lemma, epsilon: float, delta: float, factor: float) -> None:
    if not allowed(lemma, epsilon, delta):
        return
    log_epsilon, log_delta = math.log(epsilon), math.log(delta)
    width = lemma.log_width(log_epsilon, log_delta)
    assert lemma.log_width(log_epsilon - math.log(factor), log_delta) > width
    assert lemma.log_width(log_epsilon, log_delta - math.log(factor)) > width
    for bigger in (
        Lemma(lemma.d, lemma.M * factor, lemma.L),
        Lemma(lemma.d, lemma.M, lemma.L * factor),
    ):
        assert bigger.log_width(log_epsilon, log_delta) > width
    assert lemma.log_delta(factor * math.exp(width), log_epsilon) < log_delta


@given(
    lemma=st.builds(Lemma, st.integers(1, 50), sizes, sizes),
    epsilon=st.floats(0.01, 1.0),
    delta=st.floats(0.001, 0.5),
)
def test_the_steps_of_the_proof_lead_to_the_lemma(
    lemma: Lemma, epsilon: float, delta: float
) -> None:
    log_epsilon = math.log(epsilon)
    if not allowed(lemma, epsilon, delta):
        return
    width = lemma.log_width(log_epsilon, math.log(delta))
    log_radius = lemma.log_best_radius(width, log_epsilon)
    assert log_radius <= 0.5 * math.log(lemma.d) + 1e-9
    at_best = lemma.failure(width, log_epsilon, log_radius)
    assert at_best == pytest.approx(delta, rel=1e-6)
    for shift in (-0.5, -0.01, 0.01, 0.5):
        assert lemma.failure(width, log_epsilon, log_radius + shift) >= at_best
    pair = 2 * math.exp(-math.exp(width) * epsilon**2 / (8 * lemma.M**4))
    assert math.exp(lemma.log_hoeffding(width, log_epsilon)) == pytest.approx(
        pair, rel=1e-9, abs=1e-300
    )


def test_the_steps_at_values_worked_out_by_hand() -> None:
    """d = 1, M = 2, L = 3, ε = 4/3, p = 216: pε²/(8M⁴) = 3, r*³ = 9εe⁻³/(2LM) = e⁻³."""
    lemma, log_width, log_epsilon = Lemma(1, 2.0, 3.0), math.log(216), math.log(4 / 3)
    assert lemma.log_hoeffding(log_width, log_epsilon) == pytest.approx(math.log(2) - 3)
    assert lemma.log_best_radius(log_width, log_epsilon) == pytest.approx(-1)
    assert lemma.failure(log_width, log_epsilon, -1.0) == pytest.approx(18 / math.e + 36 / math.e)
    for d, share, size, bound in (
        (1, 0.5, 5, 6),
        (2, 1.0, 9, 9),
        (2, 0.5, 25, 36),
        (3, 0.5, 125, 216),
    ):
        radius = share * math.sqrt(d)
        assert Lemma(d, 1.0, 1.0).net_size(radius) == size
        assert Lemma(d, 1.0, 1.0).log_net(radius) == pytest.approx(math.log(bound))


@given(d=st.integers(1, 30), share=st.floats(0.01, 1))
def test_a_net_is_no_larger_than_the_proof_says(d: int, share: float) -> None:
    radius = share * math.sqrt(d)
    lemma = Lemma(d, 1.0, 1.0)
    assert math.log(lemma.net_size(radius)) <= lemma.log_net(radius) + 1e-9
    assert lemma.net_size(0.5 * radius) >= lemma.net_size(radius)


@given(d=st.integers(2, 100), data=st.data())
def test_the_corollary_is_the_theorem_in_fewer_dimensions(d: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(1, d))
    assert subspace_separation(2.0, d, r) == pytest.approx(2.0 * math.sqrt(r / d))
    options = {"log_C": 3.0, "alpha": 5.0, "alpha_hat": 4.0, "c": 0.5, "log_delta": math.log(0.05)}
    widths = [log_recovery_width(lemma_of("tanh", dim), **options) for dim in (r, d)]
    assert widths[0] <= widths[1]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(OptionError, match="not bounded"):
        bounded("relu")
    with pytest.raises(OptionError, match="activation"):
        bounded("nothing")
    with pytest.raises(OptionError, match="c"):
        log_recovery_epsilon(0.0, 1.0, 1.0, 2.0)
    with pytest.raises(OptionError, match="below 10"):
        log_recovery_epsilon(0.0, 1e308, 1e308, 2.0)
    with pytest.raises(OptionError, match="dimension"):
        Lemma(0, 1.0, 1.0)
    with pytest.raises(OptionError, match="below 1"):
        Lemma(3, 1.0, 1.0).log_width(math.log(0.1), math.log(1.5))
    with pytest.raises(OptionError, match="radius"):
        Lemma(3, 1.0, 1.0).net_size(5.0)
    with pytest.raises(OptionError, match="r ≤ d"):
        subspace_separation(1.0, 3, 4)
    assert whole(1000.0) is None


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out, parse_constant=_no_number)
    return answer


def _no_number(text: str) -> float:
    raise AssertionError(f"{text} is not JSON")


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    lemma = ("bounds", "lemma", "--activation", "tanh", "--dim", "10")
    wide = call(capsys, *lemma, "--epsilon", "0.1", "--delta", "0.05")
    exact = paper_width(10, 1.0, 1.0, mpmath.mpf("0.1"), 0.05)
    assert wide["width"] == int(mpmath.ceil(exact))
    back = call(capsys, *lemma, "--width", str(wide["width"]), "--delta", "0.05")
    assert back["epsilon"] == pytest.approx(0.1, rel=1e-5)
    sure = call(capsys, *lemma, "--width", str(wide["width"]), "--epsilon", "0.1")
    assert sure["delta"] == pytest.approx(0.05, rel=1e-3)
    narrow = call(capsys, *lemma, "--width", "10", "--epsilon", "0.1")
    assert narrow["vacuous"] is True
    rest = ("--alpha", "3", "--alpha-hat", "3", "--c", "0.5", "--delta", "0.05")
    theorem = call(capsys, "bounds", "theorem", "--dim", "60", *rest, "--constant", "10")
    corollary = call(
        capsys, "bounds", "corollary", "--dim", "60", "--rank", "30", *rest, "--constant", "10"
    )
    assert 0 < int(str(corollary["width"])) < int(str(theorem["width"]))
    huge = call(capsys, "bounds", "theorem", "--dim", "60", *rest, "--log10-constant", "400")
    assert huge["width"] is None
    assert float(str(huge["log10_width"])) > 800
    explicit = call(capsys, "bounds", "theorem", "--dim", "2", *rest, "--separation", "1")
    assert explicit["constant_is"] == "an upper bound"
    for wrong, said in (
        ([*lemma, "--epsilon", "0.1"], "got --epsilon; give two"),
        (lemma, "got none; give two"),
        ([*lemma, "--epsilon", "-1", "--delta", "0.1"], "--epsilon > 0"),
        (["bounds", "theorem", "--dim", "2", *rest], "got none; give --separation"),
        (
            ["bounds", "theorem", "--dim", "10", *rest, "--separation", "1"],
            "give --constant or --log10-constant",
        ),
        (
            ["bounds", "theorem", "--dim", "10", *rest, "--log10-constant", "1e308"],
            "the logarithm of C",
        ),
        (
            ["bounds", "theorem", "--dim", "10", *rest, "--log10-constant", "nan"],
            "the logarithm of C",
        ),
        (
            [
                "bounds",
                "lemma",
                "--activation",
                "relu",
                "--dim",
                "3",
                "--epsilon",
                "1",
                "--delta",
                "0.1",
            ],
            "not bounded",
        ),
    ):
        assert main(list(wrong)) == 2
        error = capsys.readouterr().err
        assert "expected" in error
        assert said in error


def test_the_commands_bound_C_as_the_proof_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """ε̃ = c/(4(‖α‖₁ + ‖α̂‖₁)) and, in a subspace, Δ' = √(r/d)Δ."""
    rest = ("--alpha", "3", "--alpha-hat", "2", "--c", "0.5", "--delta", "0.05")
    theorem = call(capsys, "bounds", "theorem", "--dim", "2", *rest, "--separation", "1.25")
    assert theorem["log10_constant"] == pytest.approx(
        log_C("tanh", 2, 1.25, 0.5 / 20) / math.log(10), rel=1e-9
    )
    corollary = call(
        capsys, "bounds", "corollary", "--dim", "32", "--rank", "2", *rest, "--separation", "5"
    )
    for fact in ("log10_constant", "log10_epsilon", "log10_width", "width"):
        assert corollary[fact] == theorem[fact]  # √(2/32)·5 = 1.25
    assert corollary["separation_used"] == 1.25


def test_the_commands_at_extremes(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, and JSON without infinities."""
    lemma = ("bounds", "lemma", "--dim", "3")
    large = call(capsys, *lemma, "--epsilon", "1e200", "--width", "100")
    assert (large["vacuous"], large["delta"], large["log10_delta"]) == (True, 0.0, None)
    small = call(capsys, *lemma, "--epsilon", "1e-200", "--delta", "0.05")
    assert (small["vacuous"], small["width"]) == (False, None)
    assert 400 < float(str(small["log10_width"])) < 410
    call(capsys, *lemma, "--epsilon", "1e-300", "--width", "3")
    call(capsys, *lemma, "--epsilon", "1e-320", "--delta", "1e-320")
    for epsilon, vacuous in (("3", True), ("2", True), ("1.9", False)):
        assert call(capsys, *lemma, "--epsilon", epsilon, "--delta", "0.05")["vacuous"] is vacuous
    rest = ("--alpha", "3", "--alpha-hat", "2", "--c", "0.5", "--delta", "0.05")
    call(capsys, "bounds", "theorem", "--dim", "3", *rest, "--log10-constant", "1e6")
