"""The one loop that all solvers use. It handles stopping, the best point so far, non-finite values,
progress, checkpoints and Ctrl-C.

A solver defines the initial state and one step. The loop itself does not wait for the device in an
iteration. A step fails if Cholesky cannot factor the Gram matrix or if a point is not finite. A
failed step is undone by a select on the device, and later steps use the next larger jitter of
`JITTERS`. The loop reads values from the device every `_CHECK` iterations and when a report is due,
or after each iteration if the solver waits for the device anyway.

A run may contain several starts, stacked along a first dimension. They share their matrix products
and nothing else.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from typing import Protocol, runtime_checkable

import torch

from recollect.geometry import Geometry
from recollect.objective.base import Fit, Objective
from recollect.shapes import Float, Int, Tensor
from recollect.system.device import threads_for
from recollect.system.progress import Report

_CHECK = 50
_REPORT_SECONDS = 0.2
_SAVE_SECONDS = 20.0
JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
"""The increasing diagonal loadings, relative to the diagonal of the Gram matrix."""

State = dict[str, Tensor]
"""The tensors that a solver keeps from step to step. `Z` is always one of them."""


Advance = Callable[["Run"], "Run"]
"""One iteration of a run."""


class Status(Enum):
    """How a run ended. The value is the message."""

    CONVERGED = "converged: the residual reached the tolerance"
    STATIONARY = (
        "done: the residual has levelled off; the confidence of each point says what to make of it"
    )
    SIGNS = (
        "signs not settled: any point may be the negative of what it stands for; the notes say why"
    )
    ITERATIONS = (
        "ran all its iterations; the best point found is kept: "
        "raise --iterations or --restarts if the loss was still falling"
    )
    INTERRUPTED = "interrupted; the best so far is kept: run the same command again to resume"
    TIME = (
        "stopped at the time limit; the best so far is kept, but no point is reported as recovered"
    )
    DIVERGED = "stopped: a step left the finite numbers; use a smaller --step"
    SINGULAR = (
        "stopped: the Gram matrix of the candidates stayed singular at the largest jitter; "
        "ask for fewer points or another --seed"
    )


@runtime_checkable
class Solver(Protocol):
    @property
    def name(self) -> str:
        """The method in words."""

    @property
    def iterations(self) -> int:
        """Largest number of steps."""

    @property
    def capturable(self) -> bool:
        """Whether a step never waits for the device, so that the loop need not read values after
        each step either."""

    def flops(self, objective: Objective, Z: Float[Tensor, "*s n r"]) -> float:
        """Approximate number of floating-point operations per step."""

    def init(self, Z: Float[Tensor, "*s n r"]) -> State:
        """The state before the first step."""

    def step(
        self, objective: Objective, geometry: Geometry, state: State, jitter: Float[Tensor, "*s"]
    ) -> tuple[State, Fit]:
        """The next state, and the fit at the current one."""

    def at_rest(self, state: State) -> bool:
        """Whether further steps would not improve the result."""


@dataclass(frozen=True)
class Run:
    """The state of a run at some iteration, from which it can continue as if it had never stopped.
    All tensors are on the device."""

    state: State
    best_Z: Float[Tensor, "*s n r"]
    best_loss: Float[Tensor, "*s"]
    trace: Float[Tensor, "*s k"]
    """The loss at each iteration; NaN where a step failed and was repeated with more jitter."""
    rung: Int[Tensor, "*s"]
    """Index of the current jitter in `JITTERS`, or `len(JITTERS)` if all of them failed."""
    iteration: Int[Tensor, 1]

    def tensors(self) -> dict[str, Tensor]:
        state = {f"state.{name}": tensor for name, tensor in self.state.items()}
        return {
            **state,
            **{
                field.name: getattr(self, field.name)
                for field in fields(self)
                if field.name != "state"
            },
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Run:
        state = {
            name.removeprefix("state."): tensor
            for name, tensor in tensors.items()
            if name.startswith("state.")
        }
        return cls(
            state,
            **{field.name: tensors[field.name] for field in fields(cls) if field.name != "state"},
        )


@dataclass(frozen=True)
class Outcome:
    Z: Float[Tensor, "n r"]
    loss: float
    trace: Float[Tensor, " k"]
    iterations: int
    seconds: float
    jitter: float
    status: Status


def start(solver: Solver, Z: Float[Tensor, "*s n r"]) -> Run:
    starts = Z.shape[:-2]
    inf = torch.full(starts, torch.inf, dtype=torch.float64, device=Z.device)
    trace = torch.full(
        (*starts, solver.iterations), torch.nan, dtype=torch.float64, device=Z.device
    )
    rung, iteration = (
        torch.zeros(shape, dtype=torch.int64, device=Z.device) for shape in (starts, (1,))
    )
    return Run(solver.init(Z), Z, inf, trace, rung, iteration)


def minimise(
    solver: Solver,
    objective: Objective,
    geometry: Geometry,
    run: Run,
    *,
    tolerance: float,
    report: Report,
    save: Callable[[Run, float], None],
    seconds: float = 0.0,
    deadline: float = math.inf,
) -> tuple[Outcome, ...]:
    """Step until the tolerance, the last iteration, a singular Gram matrix, the deadline or Ctrl-C.

    Returns the best points that each start has found. Several starts end together: when one of them
    reaches the tolerance, or when none can continue. `seconds` is the time that was spent on this
    run before it was interrupted. `deadline` is a value of `time.monotonic()`.
    """
    if (
        kept := run.trace.shape[-1]
    ) < solver.iterations:  # resumed with more iterations than it was started with
        more = run.trace.new_full((*run.trace.shape[:-1], solver.iterations - kept), torch.nan)
        run = replace(run, trace=torch.cat([run.trace, more], dim=-1))
    ladder = torch.tensor(JITTERS, dtype=torch.float64, device=run.trace.device)
    status = Status.ITERATIONS
    began = time.perf_counter() - seconds
    reported = saved = time.perf_counter()
    try:
        with threads_for(solver.flops(objective, run.best_Z), run.trace.device):
            advance: Advance = partial(_advance, solver, objective, geometry, ladder)
            iteration = int(run.iteration)
            look = _CHECK if solver.capturable else 1
            if (
                solver.capturable
                and objective.capturable
                and run.trace.is_cuda
                and iteration < solver.iterations
            ):
                advance, run = captured(advance, run)
            while True:
                # Checked before the step, so that a finished run ends at once when it is resumed.
                if iteration % look == 0 or iteration >= solver.iterations:
                    if float(run.best_loss.min()) <= tolerance:
                        status = Status.CONVERGED
                        break
                    if int(run.rung.min()) == len(JITTERS):
                        break  # `_finish` decides for each start: singular or diverged
                    if solver.at_rest(run.state):
                        status = Status.STATIONARY
                        break
                if iteration >= solver.iterations:
                    break
                if time.monotonic() > deadline:
                    status = Status.TIME
                    break
                run = advance(run)
                iteration += 1
                now = time.perf_counter()
                if now - reported > _REPORT_SECONDS:
                    report(iteration, f"loss {float(run.best_loss.min()):.2e}")
                    reported = now
                if now - saved > _SAVE_SECONDS:
                    save(run, now - began)
                    saved = time.perf_counter()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    outcomes = _finish(objective, run, ladder, status)
    spent = time.perf_counter() - began
    save(run, spent)
    return tuple(replace(outcome, seconds=spent) for outcome in outcomes)


def _advance(
    solver: Solver, objective: Objective, geometry: Geometry, ladder: Tensor, run: Run
) -> Run:
    jitter = ladder.take(run.rung.clamp_max(len(ladder) - 1))
    state, fit = solver.step(objective, geometry, run.state, jitter)
    run.trace.index_copy_(-1, run.iteration, fit.loss[..., None])
    failed = ~(torch.isfinite(fit.loss) & torch.isfinite(state["Z"]).flatten(-2).all(-1))
    better = (
        fit.loss < run.best_loss
    )  # false for NaN; Z itself is valid even if the step from it failed
    return Run(
        state={
            name: torch.where(_each(failed, new), run.state[name], new)
            for name, new in state.items()
        },
        best_Z=torch.where(_each(better, run.best_Z), run.state["Z"], run.best_Z),
        best_loss=torch.minimum(run.best_loss, torch.nan_to_num(fit.loss, torch.inf)),
        trace=run.trace,
        rung=(run.rung + failed).clamp_max(len(ladder)),
        iteration=run.iteration + 1,
    )


def _each(flags: Tensor, of: Tensor) -> Tensor:
    """The flags, one per start, reshaped to broadcast over all dimensions of `of`."""
    return flags.reshape(flags.shape + (1,) * (of.dim() - flags.dim()))


def _finish(objective: Objective, run: Run, ladder: Tensor, status: Status) -> list[Outcome]:
    jitter = ladder.take(run.rung.clamp_max(len(ladder) - 1))
    # The point after the last step has not been fitted yet.
    last = objective.fit(run.state["Z"], gradient=False, jitter=jitter).loss
    better = last < run.best_loss
    Z = torch.where(_each(better, run.best_Z), run.state["Z"], run.best_Z).reshape(
        -1, *run.best_Z.shape[-2:]
    )
    losses = torch.where(better, last, run.best_loss).reshape(-1).tolist()
    iterations = int(run.iteration)
    traces = run.trace[..., :iterations].reshape(len(Z), iterations).cpu()
    jitters, rungs = jitter.reshape(-1).tolist(), run.rung.reshape(-1).tolist()

    def ended(k: int) -> Status:
        if status is not Status.ITERATIONS or rungs[k] < len(JITTERS):
            return status
        # All jitters failed. If the last loss is finite, the step from its point failed: the run
        # diverged. Otherwise the point itself could not be fitted: the Gram matrix is singular.
        return Status.DIVERGED if bool(torch.isfinite(traces[k, -1])) else Status.SINGULAR

    return [
        Outcome(Z[k].clone(), losses[k], traces[k].clone(), iterations, 0.0, jitters[k], ended(k))
        for k in range(len(Z))
    ]


def captured(advance: Advance, run: Run) -> tuple[Advance, Run]:
    """`advance` as a CUDA graph: one launch per iteration instead of about fifty. The graph works
    in place on a copy of `run`.

    Launches dominate the time of small problems: ten thousand steps at n = 100, p = 16,000 take
    2.5 s on an H200 with the graph and 16 s without.
    """
    fixed = Run.of({name: tensor.clone() for name, tensor in run.tensors().items()})
    chosen = torch.backends.cuda.preferred_linalg_library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it says that this choice is experimental
        # MAGMA, which torch uses for stacks of systems by default, cannot be captured.
        torch.backends.cuda.preferred_linalg_library("cusolver")
        try:
            return _recorded(advance, run, fixed), fixed
        finally:
            torch.backends.cuda.preferred_linalg_library(chosen)


def _recorded(advance: Advance, run: Run, fixed: Run) -> Advance:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(
        side
    ):  # lazily created handles and workspaces must exist before the capture
        for _ in range(3):
            advance(Run.of({name: tensor.clone() for name, tensor in run.tensors().items()}))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        following = advance(fixed).tensors()
        for name, tensor in fixed.tensors().items():
            if following[name] is not tensor:
                tensor.copy_(following[name])

    def replay(run: Run) -> Run:
        graph.replay()
        return run

    return replay
