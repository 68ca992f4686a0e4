"""θ̇ = −∇_θ L(θ; X, Y): the path that training on given points takes from θ0.

Gradient descent follows this gradient flow if its steps are well below the stability limit. Two
losses are known:

    squared error   ½ Σ_i ‖f(x_i; θ) − y_i‖², until the outputs are y_i,
    cross-entropy   Σ_i log Σ_k exp f_k(x_i; θ) − f_{k_i}(x_i; θ), k_i = argmax_k y_ik (for one
                    output its logistic form, with the sign of y_i), until ‖θ − θ0‖ reaches a given
                    distance, since this loss has no minimum.

The k_i are the labels only if training has classified its points rightly by then. Once the squared
error is small, the rest of its path is nearly a straight line: the features hardly move, and the
limit of the flow is θ + Gᵀ(GGᵀ)⁻¹(Y − f(X; θ)). That one step, by conjugate gradients, replaces the
many small ones that the slow directions of GGᵀ would take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch.utils.flop_counter import FlopCounterMode

from recollect.errors import TrainingDiverged
from recollect.objective.conjugate_gradients import conjugate_gradients
from recollect.shapes import Float, Tensor, Theta
from recollect.simulate.training import span_of, tangent_kernel_norm
from recollect.victim.network import Network

_STEP = 0.2
"""Step size, as a multiple of one over the largest curvature of the loss."""
_JUMPS = 4
"""Straight lines at most. After each, the error is about the square of what it was."""
_LINE = 1e-3
"""Relative accuracy of a straight line."""
_FIT = 1e-4
"""Share of the initial error of the outputs at which the points count as fitted."""
_CHECK = 10
"""Number of steps between two checks."""
_STEPS = 10_000
"""Steps at most, however little each of them costs."""
_POWER = 30
"""Steps of the power iteration for the largest curvature. A step size this far below the limit does
not need more."""
_PRODUCTS = 300
"""Products with GGᵀ of a straight line at most."""
_OVER = 1e-12
"""Where every point is classified with a smaller probability of error, the cross-entropy moves the
weights no further."""


class Loss(Enum):
    """The loss that training is taken to have minimised."""

    SQUARED_ERROR = "squared error"
    CROSS_ENTROPY = "cross-entropy"


@dataclass(frozen=True)
class Path:
    """Where training went: its end, and the weights at half of the given distance from θ0."""

    end: dict[str, Tensor]
    middle: dict[str, Tensor]
    steps: int


def retrain(
    network: Network,
    theta_0: Theta,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n c"],
    *,
    loss: Loss,
    distance: float,
    straight: float,
    most_flops: float,
    working: Callable[[], None] = lambda: None,
) -> Path | None:
    """Train from θ0 on these points, in float64.

    Parameters
    ----------
    network, theta_0
        What is trained, and where training starts.
    X, Y
        The points, and the outputs that they have after training.
    loss
        What training minimises.
    distance
        ‖θf − θ0‖ of the training that is imitated.
    straight
        Share of the initial error of the outputs below which the path counts as a straight line.
        Its end is then off by up to about half that share of its length.
    most_flops
        Floating-point operations of the steps at most. With fewer than a hundred steps to spend
        there is no path.
    working
        Called every few steps; it may raise.

    Returns None where training does not come to its end.
    """
    whole, start, U = network, theta_0, span_of(network, X)
    if U is not None:  # all updates of W_1 are combinations of the inputs (`training.py`)
        network, theta_0, X = network.restrict(U), network.restrict_theta(theta_0, U), X @ U
    flow = _Flow(network, theta_0, X, Y, loss, straight)
    try:
        path = flow.run(distance, most_flops, working)
    except TrainingDiverged:  # the outputs do not depend on the weights
        return None
    if path is None or U is None or whole.first is None:
        return path
    W1 = whole.first.weight

    def lifted(theta: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**theta, W1: start[W1] + (theta[W1] - theta_0[W1]) @ U.T}

    return Path(lifted(path.end), lifted(path.middle), path.steps)


class _Flow:
    """Steps along the flow."""

    def __init__(
        self,
        network: Network,
        theta_0: Theta,
        X: Tensor,
        Y: Tensor,
        loss: Loss,
        straight: float,
    ) -> None:
        self.network, self.theta_0, self.X, self.Y = network, theta_0, X, Y
        self.loss, self.straight = loss, straight
        self.theta = {
            name: tensor.detach().clone().requires_grad_(name in network.trained)
            for name, tensor in theta_0.items()
        }
        self.moving = [self.theta[name] for name in network.trained]

    def run(self, distance: float, most_flops: float, working: Callable[[], None]) -> Path | None:
        steps = min(_STEPS, int(most_flops / max(1.0, self._pass_flops())))
        if steps < 100:
            return None
        working()
        step = _STEP / tangent_kernel_norm(self.network, self.theta_0, self.X, _POWER)
        squared = self.loss is Loss.SQUARED_ERROR
        middle, first = None, math.inf
        for k in range(steps):
            outputs = self.network(self.theta, self.X)
            value, slope, curvature = self._value(outputs)
            if k % _CHECK == 0:
                working()
                first = value if k == 0 else first
                if not math.isfinite(value) or value > 1e3 * max(first, 1e-300):
                    return None
                if squared and value <= self.straight**2 * first:
                    break
            if middle is None and self._moved() >= distance / 2:
                middle = self._now()
            if not squared and self._moved() >= distance:
                break
            if curvature < _OVER:
                return None
            gradients = torch.autograd.grad(outputs, self.moving, slope)
            with torch.no_grad():
                for parameter, gradient in zip(self.moving, gradients, strict=True):
                    parameter -= step / curvature * gradient
        else:
            if not squared:
                return None
        if squared and not self._jump(first, working):
            return None
        end = self._now()
        if middle is None:  # the path is shorter than half the distance
            middle = {
                name: (value + end[name]) / 2 if value.is_floating_point() else value
                for name, value in self.theta_0.items()
            }
        return Path(end, middle, k)

    def _pass_flops(self) -> float:
        """Floating-point operations of a pass forth and back."""
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            self.network(self.theta, self.X)
        return 3.0 * float(counted.get_total_flops())

    def _value(self, outputs: Tensor) -> tuple[float, Tensor, float]:
        """The loss, its derivative by the outputs, and a bound on its second derivative."""
        at = outputs.detach()
        if self.loss is Loss.SQUARED_ERROR:
            return float((at - self.Y).square().sum()), at - self.Y, 1.0
        if at.shape[1] == 1:
            sign = torch.where(self.Y >= 0, 1.0, -1.0).to(at)
            wrong = torch.sigmoid(-sign * at)
            value = float(torch.nn.functional.softplus(-sign * at).sum())
            return value, -sign * wrong, min(0.25, float(wrong.max()))
        labels = self.Y.argmax(1)
        p = at.softmax(1)
        one = torch.nn.functional.one_hot(labels, at.shape[1]).to(at)
        others = p * (1 - one)
        wrong = others.sum(1, keepdim=True)  # 1 − p of the label, without cancellation
        value = float(torch.nn.functional.cross_entropy(at, labels, reduction="sum"))
        return value, others - wrong * one, min(0.5, 2 * float(wrong.max()))

    def _jump(self, first: float, working: Callable[[], None]) -> bool:
        """The straight rest of the path. Returns whether the points are fitted."""
        for _ in range(_JUMPS):
            outputs = self.network(self.theta, self.X)
            rest = self.Y - outputs.detach()
            if float(rest.square().sum()) <= _FIT**2 * first:
                return True
            v = torch.zeros_like(outputs, requires_grad=True)
            transposed = torch.autograd.grad(outputs, self.moving, v, create_graph=True)

            def product(u: Tensor, outputs: Tensor = outputs, v: Tensor = v) -> Tensor:
                """GGᵀu."""
                working()
                down = torch.autograd.grad(outputs, self.moving, u, retain_graph=True)
                (up,) = torch.autograd.grad(transposed, v, down, retain_graph=True)  # noqa: B023
                return up

            u = conjugate_gradients(
                product, rest, tolerance=_LINE, most=min(rest.numel(), _PRODUCTS)
            ).x
            step = torch.autograd.grad(outputs, self.moving, u)
            with torch.no_grad():
                for parameter, change in zip(self.moving, step, strict=True):
                    parameter += change
        outputs = self.network(self.theta, self.X)
        return float((self.Y - outputs.detach()).square().sum()) <= _FIT**2 * first

    def _now(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.theta.items()}

    def _moved(self) -> float:
        """‖θ − θ0‖."""
        with torch.no_grad():
            return math.sqrt(
                sum(
                    float((self.theta[name] - self.theta_0[name]).square().sum())
                    for name in self.network.trained
                )
            )
