"""Retraining on the points found: the data are a fixed point, nearby points move there, and
everything else is left as it was."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CPU, F64, Memory, generator
from torch import Tensor

import recollect as rc
from recollect import (
    Exact,
    FullSpace,
    LevenbergMarquardt,
    Reconstruction,
    Status,
    Victim,
    evaluate,
    reconstruct,
)
from recollect.attacks.exact.base import Stages, State
from recollect.attacks.exact.confidence import expected_errors
from recollect.attacks.exact.retrace import corrected, imitable, improve, retrace
from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.problem import Problem
from recollect.attacks.runs import Late, Runs
from recollect.auditing.verdict import called
from recollect.objective.base import SplitObjective
from recollect.objective.endpoints import Endpoints
from recollect.simulate.retraining import Loss
from recollect.simulate.training import FullBatchDescent, train_network
from recollect.solve.loop import minimise, start
from recollect.victim.mlp import initial_theta, mlp


def trained(
    seed: int = 0, *, width: int = 60, depth: int = 2, bias: bool = True, rate: float | None = None
) -> tuple[Victim, Tensor]:
    network = mlp(6, width, 2, depth=depth, bias=bias)
    X = torch.randn(4, 6, generator=generator(seed), dtype=F64)
    X = math.sqrt(6) * X / X.norm(dim=1, keepdim=True)
    Y = torch.nn.functional.one_hot(torch.arange(4) % 2, 2).to(F64)
    theta_0 = initial_theta(network, init="torch", generator=generator(seed + 1), dtype=F64)
    optimiser = FullBatchDescent(learning_rate=rate)
    return train_network(network, theta_0, X, Y, optimiser=optimiser).victim, X


def objective(problem: Problem, tau: float) -> SplitObjective:
    """That of the path, as far as counting allows."""
    if problem.search.parameters == "last":
        return problem.last_layer(Endpoints.BOTH)
    return problem.layerwise(Endpoints.PATH, tau=tau, balanced=True)


def coordinates(problem: Problem, X: Tensor) -> Tensor:
    """The points of the search at X."""
    if problem.whole.d > problem.victim.d:
        X = torch.cat([X, torch.full((len(X), 1), problem.geometry.radius, dtype=F64)], dim=1)
    return problem.geometry.project(X if problem.U is None else X @ problem.U)


def descended(problem: Problem, Z: Tensor, tau: float) -> Tensor:
    solver, judge = LevenbergMarquardt(), objective(problem, tau)
    (ended,) = minimise(
        solver,
        judge,
        problem.geometry,
        start(solver, Z),
        tolerance=1e-24,
        report=lambda *_: None,
        save=lambda *_: None,
    )
    return ended.Z


def error(problem: Problem, Z: Tensor, X: Tensor) -> float:
    return float((problem.inputs(Z) - X).norm() / X.norm())


settings = pytest.mark.parametrize(
    ("parameters", "bias", "depth", "tau"),
    [
        ("all", True, 2, 0.0),
        ("all", True, 2, 0.1),
        ("all", False, 2, 0.05),
        ("all", True, 3, 0.1),
        ("last", True, 2, 0.0),
        ("last", False, 3, 0.0),
    ],
)


@settings
def test_the_data_are_a_fixed_point(parameters: str, bias: bool, depth: int, tau: float) -> None:
    victim, X = trained(bias=bias, depth=depth)
    problem = Problem.of(victim, Exact(parameters=parameters), CPU)
    Z = coordinates(problem, X)
    assert error(problem, Z, X) < 1e-6
    done = retrace(
        problem, Z, Loss.SQUARED_ERROR, straight=1e-4, most_flops=1e11, working=lambda: None
    )
    assert done is not None
    assert done.mismatch < 2e-3
    plain = objective(problem, tau).fit(Z, gradient=False).loss
    mended = corrected(problem, done, tau, objective)
    left = objective(mended, tau).fit(Z, gradient=False).loss
    assert float(left) < 1e-2 * float(plain)
    assert float(left) < 1e-5
    away = error(problem, descended(problem, Z, tau), X)
    assert error(problem, descended(mended, Z, tau), X) < max(0.2 * away, 2e-3)


@pytest.mark.parametrize("rate", [None, 0.02, 0.1])
def test_points_that_are_nearly_right_move_to_the_data(rate: float | None) -> None:
    """Whatever the step size of the real training was, if it is well below the stability limit."""
    victim, X = trained(3, rate=rate)
    problem = Problem.of(victim, Exact(parameters="all"), CPU)
    Z = coordinates(problem, X)
    noise = torch.randn(Z.shape, generator=generator(7), dtype=F64)
    near = problem.geometry.project(Z + 0.1 * problem.geometry.tangent(Z, noise))
    assert error(problem, near, X) > 0.05
    rounds = list(
        improve(
            problem,
            near,
            Tuning(),
            lambda problem, Z, tau: descended(problem, Z, tau),
            objective,
            lambda message: None,
        )
    )
    found = [(one.mismatch, error(problem, one.Z, X)) for one in rounds]
    assert min(found)[1] < 0.15 * found[0][1]
    assert min(found)[0] < 0.5 * found[0][0]


def test_training_that_is_no_gradient_flow_leaves_the_points_where_they_are() -> None:
    victim, X = trained(3, rate=0.3)  # a little above the stability limit
    problem = Problem.of(victim, Exact(parameters="all"), CPU)
    (only,) = improve(
        problem,
        coordinates(problem, X),
        Tuning(),
        lambda problem, Z, tau: descended(problem, Z, tau),
        objective,
        lambda message: None,
    )
    assert only.mismatch > Tuning().unlike
    assert error(problem, only.Z, X) < 1e-6


def test_points_of_another_model_do_not_lead_to_the_weights() -> None:
    (victim, _), (_, other) = trained(0), trained(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    (only,) = improve(
        problem,
        coordinates(problem, other),
        Tuning(),
        lambda problem, Z, tau: descended(problem, Z, tau),
        objective,
        lambda message: None,
    )
    assert only.mismatch > Tuning().unlike


# From end to end.


@functools.cache
def wide(seed: int = 0) -> tuple[Victim, Tensor]:
    return trained(seed, width=100)


def test_a_reconstruction_gets_closer_and_says_how_close() -> None:
    victim, X = wide()
    never, always = (
        reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain=one))
        for one in ("never", "always")
    )
    assert never.mismatch is None
    assert always.mismatch is not None
    assert always.mismatch < 0.02
    assert evaluate(always, X).rho < 0.5 * evaluate(never, X).rho
    assert always.stages[-1].name.endswith("of retraining")
    assert [stage.name for stage in never.stages] == [s.name for s in always.stages[:-1]]
    # What is reported is the loss of the network as it is, not of the corrected problem.
    assert always.loss == pytest.approx(never.loss, rel=0.5)


@pytest.mark.parametrize("at", [0, 1, 30])
def test_time_that_runs_out_while_retraining_takes_nothing_away(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, X = wide()
    never = reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain="never"))
    calls = _ending(at, Late, monkeypatch)
    late = reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain="always"))
    assert calls() > at
    assert late.status is Status.STATIONARY
    assert any("time was over" in note for note in late.notes)
    assert evaluate(late, X).rho <= 1.01 * evaluate(never, X).rho
    assert not late.withheld


def test_an_interruption_while_retraining_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, X = wide()
    straight = reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain="always"))
    memory = Memory()
    with monkeypatch.context() as patched:
        _ending(30, KeyboardInterrupt, patched)
        stopped = reconstruct(
            victim, 4, Exact(unmix="never", parameters="last", retrain="always"), resume=memory
        )
    assert stopped.status is Status.INTERRUPTED
    never = reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain="never"))
    assert evaluate(stopped, X).rho <= 1.01 * evaluate(never, X).rho
    resumed = reconstruct(
        victim, 4, Exact(unmix="never", parameters="last", retrain="always"), resume=memory
    )
    assert torch.equal(resumed.inputs, straight.inputs)
    assert resumed.mismatch == straight.mismatch


@pytest.mark.parametrize("parameters", ["last", "all"])
def test_points_are_retraced_in_their_own_coordinates(
    parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those may be others than the search began with, where it turned the subspace."""
    victim, X = wide()
    options = Exact(unmix="never", parameters=parameters, retrain="always")
    straight = reconstruct(victim, 4, options)

    plain = Stages._retrace

    def turned(self: Stages) -> None:  # type: ignore[type-arg]
        state = self.state
        assert state is not None
        assert self.problem.U is not None
        noise = torch.randn(state.problem.r, state.problem.r, generator=generator(3), dtype=F64)
        Q = torch.linalg.qr(noise).Q
        problem = state.problem.within(self.problem.U @ Q)
        outcome = replace(state.outcome, Z=state.outcome.Z @ Q)
        objective = self._on_the_path(problem, 0.0).at(Endpoints.BOTH)
        self.state = State(problem, objective, outcome, state.signs_settled)
        plain(self)

    monkeypatch.setattr(Stages, "_retrace", turned)
    found = reconstruct(victim, 4, options)
    assert found.stages[-1].name == straight.stages[-1].name
    assert found.stages[-1].name.endswith("of retraining")
    assert evaluate(found, X).rho <= 1.1 * evaluate(straight, X).rho


def test_without_gain_nothing_is_adopted() -> None:
    victim, _ = wide()
    never_enough = Tuning(retraced=0.0)
    options = Exact(unmix="never", parameters="last", retrain="always", tuning=never_enough)
    result = reconstruct(victim, 4, options)
    never = reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain="never"))
    assert result.stages[-1].name == "retraining without gain"
    assert result.mismatch is not None
    assert torch.equal(result.inputs, never.inputs)
    assert torch.equal(result.confidence, never.confidence)


@pytest.mark.parametrize("seed", [0, 6])
def test_small_victims_are_retrained_without_being_asked(seed: int) -> None:
    """With few equations points may seem certain and be wrong: width 30, three points, one output.
    Training on them shows it, and corrects them."""
    made = rc.train(
        dataset="synthetic", n=3, dim=6, rank=3, noise=0.5, width=30, seed=seed, dtype="float64"
    )
    never = reconstruct(made.victim, 3, Exact(unmix="never", retrain="never"), seed=seed)
    plain = reconstruct(made.victim, 3, Exact(unmix="never"), seed=seed)
    assert plain.mismatch is not None
    assert plain.mismatch < 0.01
    assert never.confidence is not None
    wrong = (never.confidence > 0.8) & (evaluate(never, made.inputs).closest_up_to_sign > 0.1)
    assert wrong.any()
    assert evaluate(plain, made.inputs).rho_up_to_sign < 0.01


def test_a_large_mismatch_hides_no_point() -> None:
    """One large step, which no gradient flow imitates, shows the points exactly."""
    network = mlp(16, 60, 3, bias=True)
    X = torch.randn(5, 16, generator=generator(0), dtype=F64)
    X = 4 * X / X.norm(dim=1, keepdim=True)
    labels = torch.arange(5) % 3
    theta_0 = initial_theta(network, init="torch", generator=generator(1), dtype=F64)
    theta = {name: value.clone().requires_grad_() for name, value in theta_0.items()}
    loss = torch.nn.functional.cross_entropy(network(theta, X), labels)
    slopes = torch.autograd.grad(loss, list(theta.values()))
    after = {
        name: (value - 3 * slope).detach()
        for (name, value), slope in zip(theta.items(), slopes, strict=True)
    }
    found = reconstruct(Victim(network, theta_0, after), 5)
    assert found.mismatch is not None
    assert found.mismatch > 0.4
    assert evaluate(found, X).rho < 1e-3
    assert called(found).all()


@pytest.mark.parametrize("retrain", ["never", "always"])
def test_confidence_knows_of_the_mismatch_of_corrected_points(
    retrain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = wide()
    from recollect.attacks.exact import run

    given: list[float] = []
    plain = run.describe

    def described(*arguments: Any, least: float, **more: Any) -> Reconstruction:
        given.append(least)
        return plain(*arguments, least=least, **more)

    monkeypatch.setattr(run, "describe", described)
    found = reconstruct(victim, 4, Exact(unmix="never", parameters="last", retrain=retrain))
    expected = 0.0 if found.mismatch is None else found.mismatch**2
    assert given == [expected]
    assert (expected > 0) is (retrain == "always")


def test_a_corrected_loss_does_not_make_points_sure() -> None:
    """The mismatch that remains counts as unexplained."""
    victim, X = wide()
    problem = Problem.of(victim, Exact(parameters="last"), CPU)
    Z = coordinates(problem, X)
    judge = objective(problem, 0.0)
    low, high = (expected_errors(judge, problem.geometry, Z, least=least) for least in (0.0, 0.25))
    assert bool((high > 2 * low).all())


def _ending(
    at: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], int]:
    working, calls = Runs.working, 0

    def counting(self: Runs, message: str) -> None:
        nonlocal calls
        calls += 1
        if calls > at:
            raise error
        working(self, message)

    monkeypatch.setattr(Runs, "working", counting)
    return lambda: calls


def test_what_retraining_cannot_imitate_is_left_alone() -> None:
    victim, _ = wide()

    def able(victim: Victim = victim, **options: object) -> bool:
        return imitable(Problem.of(victim, Exact(**options), CPU))  # type: ignore[arg-type]

    assert able()
    assert able(endpoints=Endpoints.BOTH)
    assert not able(endpoints=Endpoints.FINAL)
    frozen = {
        name: value if name in victim.network.last.names else victim.theta_0[name]
        for name, value in victim.theta_f.items()
    }
    still = Victim(victim.network, victim.theta_0, frozen)
    assert not imitable(Problem.of(still, Exact(space=FullSpace()), CPU))
