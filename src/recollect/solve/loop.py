"""One loop for every solver. It owns stopping, best-so-far, non-finite values, progress, checkpoints and Ctrl-C.

A solver says how to start and how to take one step. Nothing in an iteration waits for the device: a step whose loss
is not finite (a Gram that Cholesky could not factor) is undone by a select on the device, and the jitter climbs one
rung for the steps to come. The loop looks at the numbers every `_CHECK` iterations, or when it is time to report.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import torch

from recollect.geometry import Geometry
from recollect.progress import Report
from recollect.shapes import Float, Int, Tensor
from recollect.span import Fit, Span

_CHECK = 50
_REPORT_SECONDS = 0.2
_SAVE_SECONDS = 20.0
JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""The ladder of diagonal loadings, relative to the Gram's diagonal."""

State = dict[str, Tensor]
"""What a solver carries from step to step. `Z` is always in it."""


class Status(Enum):
    """How a run ended. The value is the message."""

    CONVERGED = "converged: the residual reached the tolerance"
    ITERATIONS = "ran all its iterations; the best point found is kept: raise --iterations or --restarts if the loss was still falling"
    INTERRUPTED = "interrupted; the best so far is kept: run the same command again to resume"
    SINGULAR = "stopped: the Gram matrix of the candidates stayed singular at the largest jitter; ask for fewer points or another --seed"


class Solver(Protocol):
    @property
    def iterations(self) -> int:
        """Steps to take at most."""

    def init(self, Z: Float[Tensor, "n r"]) -> State:
        """The state before the first step."""

    def step(self, span: Span, geometry: Geometry, state: State, jitter: Float[Tensor, ""]) -> tuple[State, Fit]:
        """The next state, and the fit at the present one."""


@dataclass(frozen=True)
class Run:
    """A run at some iteration: enough to go on from there as if it had never stopped."""

    state: State
    iteration: int
    best_Z: Float[Tensor, "n r"]
    best_loss: Float[Tensor, ""]
    trace: Float[Tensor, " k"]
    """The loss at each iteration; NaN where a step failed and was taken again with more jitter."""
    rung: Int[Tensor, ""]
    """Where on the ladder of jitters the run stands."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    Z: Float[Tensor, "n r"]
    loss: float
    trace: Float[Tensor, " k"]
    iterations: int
    seconds: float
    jitter: float
    status: Status


def start(solver: Solver, Z: Float[Tensor, "n r"]) -> Run:
    inf = torch.tensor(torch.inf, dtype=torch.float64, device=Z.device)
    trace = torch.full((solver.iterations,), torch.nan, dtype=torch.float64, device=Z.device)
    return Run(solver.init(Z), 0, Z, inf, trace, torch.zeros((), dtype=torch.int64, device=Z.device))


def minimise(
    solver: Solver,
    span: Span,
    geometry: Geometry,
    run: Run,
    *,
    tolerance: float,
    report: Report,
    save: Callable[[Run], None],
) -> Outcome:
    """Step until the tolerance, the last iteration, a singular Gram or Ctrl-C; return the best point met."""
    if len(run.trace) < solver.iterations:  # resumed with more iterations than it was started with
        more = run.trace.new_full((solver.iterations - len(run.trace),), torch.nan)
        run = replace(run, trace=torch.cat([run.trace, more]))
    ladder = torch.tensor(JITTERS, dtype=torch.float64, device=run.trace.device)
    status = Status.ITERATIONS
    began = time.perf_counter() - run.seconds
    reported = saved = time.perf_counter()
    try:
        while True:
            if run.iteration % _CHECK == 0:  # looked at before stepping, so that a finished run resumes to its end
                if float(run.best_loss) <= tolerance:
                    status = Status.CONVERGED
                    break
                if int(run.rung) == len(JITTERS):
                    status = Status.SINGULAR
                    break
            if run.iteration >= solver.iterations:
                break
            run = _step(solver, span, geometry, run, ladder)
            now = time.perf_counter()
            if now - reported > _REPORT_SECONDS:
                report(run.iteration, f"loss {float(run.best_loss):.2e}")
                reported = now
            if now - saved > _SAVE_SECONDS:
                save(replace(run, seconds=now - began))
                saved = time.perf_counter()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    outcome = _finish(span, run, ladder, status)
    run = replace(run, seconds=time.perf_counter() - began)
    save(run)
    return replace(outcome, seconds=run.seconds)


def _step(solver: Solver, span: Span, geometry: Geometry, run: Run, ladder: Tensor) -> Run:
    state, fit = solver.step(span, geometry, run.state, ladder[run.rung.clamp_max(len(ladder) - 1)])
    run.trace[run.iteration] = fit.loss
    finite = torch.isfinite(fit.loss)
    better = fit.loss < run.best_loss  # false for NaN
    return replace(
        run,
        state={name: torch.where(finite, new, run.state[name]) for name, new in state.items()},
        iteration=run.iteration + 1,
        best_Z=torch.where(better, run.state["Z"], run.best_Z),
        best_loss=torch.where(better, fit.loss, run.best_loss),
        rung=(run.rung + ~finite).clamp_max(len(ladder)),
    )


def _finish(span: Span, run: Run, ladder: Tensor, status: Status) -> Outcome:
    jitter = ladder[run.rung.clamp_max(len(ladder) - 1)]
    # The last step led somewhere that no fit has looked at yet.
    last = span.fit(run.state["Z"], gradient=False, jitter=jitter).loss
    Z, loss = (run.state["Z"], float(last)) if last < run.best_loss else (run.best_Z, float(run.best_loss))
    return Outcome(Z, loss, run.trace[: run.iteration].cpu(), run.iteration, run.seconds, float(jitter), status)
