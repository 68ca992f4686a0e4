"""The loop: what the paper's iteration does, and everything that can happen around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from cases import CPU, F64, generator, small_mlp
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recollect.errors import OptionError
from recollect.geometry import FreeRadius, Sphere, random_start
from recollect.objective.base import Fit, Objective
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective
from recollect.objective.layerwise import LayerwiseObjective
from recollect.solve.gradient_descent import GradientDescent, paper_step
from recollect.solve.loop import JITTERS, Outcome, Run, Status, minimise, start


@dataclass
class Bowl:
    """L(Z) = ‖Z − target‖²: a span whose answer is known. `trouble` may turn a fit into a
    failure."""

    target: Tensor
    trouble: Callable[[int, float], bool] = lambda fits, jitter: False
    fits: int = 0
    equations: int = 10
    capturable: bool = False
    name: str = "bowl"
    notes: tuple[str, ...] = ()
    seen: list[Tensor] = field(default_factory=list)

    def flops(self, n: int) -> float:
        return 1.0

    def fit(self, X: Tensor, *, gradient: bool = True, jitter: Tensor | None = None) -> Fit:
        self.fits += 1
        self.seen.append(X)
        loss = (X - self.target).square().sum()
        if self.trouble(self.fits, 0.0 if jitter is None else float(jitter)):
            loss = loss * torch.nan
        return Fit(
            loss, torch.zeros(len(X), 1, dtype=X.dtype), 2 * (X - self.target) if gradient else None
        )


def run(objective: Objective, solver: GradientDescent, Z: Tensor, **options: object) -> Outcome:
    keep = {
        "tolerance": 0.0,
        "report": lambda done, message: None,
        "save": lambda run, seconds: None,
        **options,
    }
    found = minimise(
        solver,
        objective,
        options.pop("geometry", FreeRadius(1.0)),
        start(solver, Z),
        **{k: v for k, v in keep.items() if k != "geometry"},
    )  # type: ignore[arg-type]
    return min(found, key=lambda outcome: outcome.loss)


@given(
    step=st.floats(1e-3, 0.2),
    momentum=st.floats(0, 0.95),
    iterations=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_it_is_the_papers_iteration(
    step: float, momentum: float, iterations: int, seed: int
) -> None:
    """V ← βV + ∇L, Z ← Π(Z − ηV), written out again on a real span."""
    victim = small_mlp(seed)
    objective = LastLayerObjective(Evidence.change(victim), device=CPU, dtype=F64)
    sphere = Sphere(math.sqrt(5))
    Z = random_start(sphere, 3, 5, generator(seed))
    solver = GradientDescent(step_size=step, momentum=momentum, iterations=iterations)
    (outcome,) = minimise(
        solver,
        objective,
        sphere,
        start(solver, Z),
        tolerance=0.0,
        report=lambda done, message: None,
        save=lambda run, seconds: None,
    )
    losses, places, V = [], [], torch.zeros_like(Z)
    for _ in range(iterations):
        fit = objective.fit(Z)
        assert fit.gradient is not None
        losses.append(float(fit.loss))
        places.append(Z)
        V = momentum * V + fit.gradient
        Z = Z - step * V
        Z = math.sqrt(5) * Z / Z.norm(dim=1, keepdim=True)
    torch.testing.assert_close(outcome.trace, torch.tensor(losses, dtype=F64))
    last = float(objective.fit(Z).loss)
    best = min([*losses, last])
    assert outcome.loss == pytest.approx(best, rel=1e-9)
    assert outcome.status is Status.ITERATIONS
    expected = Z if last == best else places[losses.index(best)]
    torch.testing.assert_close(outcome.Z, expected)


def test_the_best_point_is_kept_when_the_iteration_wanders_off() -> None:
    bowl = Bowl(torch.zeros(1, 2, dtype=F64))
    outcome = run(
        bowl,
        GradientDescent(step_size=1.5, momentum=0.0, iterations=20),
        torch.ones(1, 2, dtype=F64),
    )
    assert outcome.trace[-1] > outcome.trace[0]
    assert outcome.loss == float(outcome.trace[0])
    assert torch.equal(outcome.Z, torch.ones(1, 2, dtype=F64))


def test_it_stops_at_the_tolerance() -> None:
    bowl = Bowl(torch.zeros(1, 2, dtype=F64))
    outcome = run(
        bowl,
        GradientDescent(step_size=0.2, momentum=0.0, iterations=10_000),
        torch.ones(1, 2, dtype=F64),
        tolerance=1e-12,
    )
    assert outcome.status is Status.CONVERGED
    assert outcome.iterations < 200
    assert outcome.loss <= 1e-12


def test_failures_climb_the_jitter_ladder_and_are_recorded() -> None:
    bowl = Bowl(
        torch.zeros(1, 2, dtype=F64), trouble=lambda fits, jitter: fits > 5 and jitter < 1e-9
    )
    outcome = run(
        bowl,
        GradientDescent(step_size=0.1, momentum=0.0, iterations=100),
        torch.ones(1, 2, dtype=F64),
    )
    assert outcome.jitter == 1e-8
    assert outcome.status is Status.ITERATIONS
    assert int(torch.isnan(outcome.trace).sum()) == 3
    assert outcome.loss < 1e-10
    where = [torch.equal(a, b) for a, b in zip(bowl.seen[5:8], bowl.seen[6:9], strict=True)]
    assert all(where)  # a failed step is taken again from the same place


def test_a_gram_that_stays_singular_ends_the_run() -> None:
    bowl = Bowl(torch.zeros(1, 2, dtype=F64), trouble=lambda fits, jitter: fits > 5)
    outcome = run(
        bowl,
        GradientDescent(step_size=0.1, momentum=0.0, iterations=1000),
        torch.ones(1, 2, dtype=F64),
    )
    assert outcome.status is Status.SINGULAR
    assert outcome.iterations == 50
    assert math.isfinite(outcome.loss)
    assert torch.isfinite(outcome.Z).all()


def test_ctrl_c_keeps_the_best_and_resuming_is_as_if_nothing_happened() -> None:
    def interrupt(fits: int, jitter: float) -> bool:
        if fits == 37:
            raise KeyboardInterrupt
        return (
            fits > 20 and jitter < 1e-11
        )  # some trouble before, so that the ladder is part of what resumes

    target, Z = torch.full((2, 3), 0.5, dtype=F64), torch.ones(2, 3, dtype=F64)
    solver = GradientDescent(step_size=0.01, momentum=0.9, iterations=120)
    saved: list[Run] = []
    stopped = run(
        Bowl(target, trouble=interrupt), solver, Z, save=lambda run, seconds: saved.append(run)
    )
    assert stopped.status is Status.INTERRUPTED
    assert stopped.iterations == 36
    quiet = {
        "tolerance": 0.0,
        "report": lambda done, message: None,
        "save": lambda run, seconds: None,
    }
    (resumed,) = minimise(solver, Bowl(target), FreeRadius(1.0), saved[-1], **quiet)  # type: ignore[arg-type]
    straight = run(
        Bowl(target, trouble=lambda fits, jitter: 20 < fits < 30 and jitter < 1e-11), solver, Z
    )
    assert torch.equal(resumed.Z, straight.Z)
    assert torch.equal(resumed.trace.nan_to_num(), straight.trace.nan_to_num())
    assert resumed.jitter == straight.jitter == 1e-10


def test_an_interruption_is_one_even_where_every_rung_has_failed() -> None:
    def trouble(fits: int, jitter: float) -> bool:
        if fits == 20:
            raise KeyboardInterrupt
        return fits > 5

    target, Z = torch.zeros(2, 3, dtype=F64), torch.ones(2, 3, dtype=F64)
    solver = GradientDescent(step_size=0.01, iterations=120)
    assert run(Bowl(target, trouble=trouble), solver, Z).status is Status.INTERRUPTED
    assert (
        run(Bowl(target, trouble=lambda fits, jitter: fits > 5), solver, Z).status
        is Status.SINGULAR
    )


def test_a_finished_run_can_be_given_more_iterations() -> None:
    target, Z = torch.zeros(1, 2, dtype=F64), torch.ones(1, 2, dtype=F64)
    saved: list[Run] = []
    short, long = (GradientDescent(step_size=0.001, iterations=k) for k in (30, 80))
    run(Bowl(target), short, Z, save=lambda run, seconds: saved.append(run))
    quiet = {
        "tolerance": 0.0,
        "report": lambda done, message: None,
        "save": lambda run, seconds: None,
    }
    (extended,) = minimise(long, Bowl(target), FreeRadius(1.0), saved[-1], **quiet)  # type: ignore[arg-type]
    assert torch.equal(extended.Z, run(Bowl(target), long, Z).Z)
    assert len(extended.trace) == 80


def test_a_run_survives_its_own_tensors() -> None:
    made = start(GradientDescent(step_size=1.0, iterations=5), torch.ones(2, 3))
    again = Run.of(made.tensors())
    assert set(again.state) == {"Z", "velocity"}
    assert all(
        torch.equal(a, b) or torch.isnan(a).all()
        for a, b in zip(made.tensors().values(), again.tensors().values(), strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 0.0},
        {"step_size": math.nan},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"iterations": 0},
    ],
)
def test_absurd_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="expected"):
        GradientDescent(**options)  # type: ignore[arg-type]


def test_the_papers_two_steps() -> None:
    assert (paper_step(60), paper_step(256), paper_step(257), paper_step(3072)) == (
        20.0,
        20.0,
        2000.0,
        2000.0,
    )


@dataclass
class Singular:
    """A span in which some starts have a Gram that cannot be factored without jitter of 1e-9."""

    objective: LastLayerObjective
    which: Tensor
    equations: int = 10
    capturable: bool = False
    name: str = "singular at times"
    notes: tuple[str, ...] = ()

    def flops(self, n: int) -> float:
        return 1.0

    def fit(self, X: Tensor, *, gradient: bool = True, jitter: Tensor | None = None) -> Fit:
        assert jitter is not None
        fit, fails = (
            self.objective.fit(X, gradient=gradient, jitter=jitter),
            self.which & (jitter < 1e-9),
        )
        slope = (
            None
            if fit.gradient is None
            else torch.where(fails[..., None, None], torch.nan, fit.gradient)
        )
        return Fit(torch.where(fails, torch.nan, fit.loss), fit.alpha, slope)


def test_starts_that_share_a_run_do_not_share_their_trouble() -> None:
    """The second of three starts alone climbs the ladder of jitters."""
    objective, sphere = (
        LastLayerObjective(Evidence.change(small_mlp(0)), device=CPU, dtype=F64),
        Sphere(2.0),
    )
    Z = torch.stack([random_start(sphere, 3, 5, generator(k)) for k in range(3)])
    solver, which = (
        GradientDescent(step_size=0.05, iterations=40),
        torch.tensor([False, True, False]),
    )
    saved: list[Run] = []
    together = run(
        Singular(objective, which),
        solver,
        Z,
        geometry=sphere,
        save=lambda run, seconds: saved.append(run),
    )
    assert saved[-1].rung.tolist() == [0, JITTERS.index(1e-8), 0]
    alone = [run(Singular(objective, which[k]), solver, Z[k], geometry=sphere) for k in range(3)]
    best = min(alone, key=lambda outcome: outcome.loss)
    assert together.loss == pytest.approx(best.loss, rel=1e-9)
    torch.testing.assert_close(together.Z, best.Z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(together.trace, best.trace, rtol=1e-9, atol=1e-9)
    lowest = torch.stack([outcome.trace.nan_to_num(torch.inf).min() for outcome in alone])
    torch.testing.assert_close(saved[-1].best_loss, lowest, rtol=1e-6, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_cuda_graph_gives_the_bits_of_the_plain_loop(
    layers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, device = small_mlp(0), torch.device("cuda")
    solver = GradientDescent(step_size=0.5, iterations=200)
    Z = random_start(Sphere(2.0), 3, 5, generator(0)).to(device)
    outcomes = []
    for capturable in (True, False):
        monkeypatch.setattr(LastLayerObjective, "capturable", capturable)
        monkeypatch.setattr(LayerwiseObjective, "capturable", capturable)
        objective = (
            LastLayerObjective(Evidence.change(victim), device=device, dtype=F64)
            if layers == "last"
            else LayerwiseObjective(
                Evidence.change(victim), victim.select("all"), device=device, dtype=F64
            )
        )
        outcomes.append(run(objective, solver, Z, geometry=Sphere(2.0)))
    assert torch.equal(outcomes[0].Z, outcomes[1].Z)
    assert torch.equal(outcomes[0].trace, outcomes[1].trace)
