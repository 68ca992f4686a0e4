"""Training the victim: full-batch gradient descent to a target mean squared error (P-train), or the
closed form.

    ½Σ loss:  ½ Σ_ik (f_k(x_i; θ) − y_ik)²          mean loss:  1/(nc) Σ_ik (f_k(x_i; θ) − y_ik)²

Near interpolation the loss Hessian is s·GᵀG, where G is the Jacobian of the outputs and s is 1 for
the sum and 2/(nc) for the mean. It has the same largest eigenvalue λmax as s·GGᵀ, where GGᵀ is the
tangent kernel. Gradient descent is stable for step sizes below 2/λmax.

Every update of the first weight matrix W_1 is a combination of the inputs. Hence W_1 = W_1⁰ + C Uᵀ,
where U is a basis of their span, and W_1 x = (W_1 U)(Uᵀx). If d ≫ n, the n points are therefore
represented in n dimensions for training, which multiplies the cost of the first layer by n/d, and
C Uᵀ is added to W_1⁰ at the end. This is not done in float32, where the rounding errors of each
step leave the span and are part of the victim.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from recollect.errors import OptionError, TrainingDidNotConverge, TrainingDiverged
from recollect.shapes import Float, Tensor, Theta
from recollect.system.device import threads_for
from recollect.system.progress import Progress, quiet
from recollect.system.seeds import stream
from recollect.victim.mlp import MLP
from recollect.victim.network import Network
from recollect.victim.victim import Victim

_CHECK = 10
"""Number of steps between two checks of the loss."""


@dataclass(frozen=True, kw_only=True)
class SquaredError:
    """The `mean` of squares over all n·c outputs, or half their `sum`. The paper's text has both
    losses."""

    reduction: str = "mean"

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise OptionError(
                f"expected --loss mse-mean or mse-sum, got {self.reduction!r}; choose one of those"
            )

    def value(
        self, outputs: Float[Tensor, "n c"], targets: Float[Tensor, "n c"]
    ) -> Float[Tensor, ""]:
        squares = (outputs - targets).square()
        return squares.mean() if self.reduction == "mean" else 0.5 * squares.sum()

    def curvature(self, n: int, c: int) -> float:
        """s: the Hessian of the loss with respect to the outputs is s·I."""
        return 2 / (n * c) if self.reduction == "mean" else 1.0


@dataclass(frozen=True, kw_only=True)
class FullBatchDescent:
    """Gradient descent, θ ← θ − η∇L. If `learning_rate` is None, η is one tenth of the stability
    limit at θ0, well inside the lazy regime."""

    learning_rate: float | None = None
    max_steps: int = 200_000

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not (
            math.isfinite(self.learning_rate) and self.learning_rate > 0
        ):
            raise OptionError(
                f"expected --learning-rate auto or a positive number, got {self.learning_rate}; "
                "use auto"
            )
        if self.max_steps < 1:
            raise OptionError(
                f"expected --max-steps of at least 1, got {self.max_steps}; allow more"
            )


@dataclass(frozen=True)
class ClosedForm:
    """Quantities of θ* = Φᵀα with α = (ΦΦᵀ)⁻¹y that the recovery theorem needs."""

    alpha: Float[Tensor, "n c"]
    separation: float
    """Δ, the smallest distance between two inputs. It is infinite for a single input."""

    @property
    def c(self) -> float:
        """min |α_i|. With several outputs, the smallest norm of the coefficients of a point."""
        return float(torch.linalg.vector_norm(self.alpha, dim=1).min())

    @property
    def l1(self) -> float:
        """‖α‖₁. With several outputs, the sum of the norms of all points' coefficients."""
        return float(torch.linalg.vector_norm(self.alpha, dim=1).sum())


@dataclass(frozen=True)
class Training:
    """A trained victim, and how its training went."""

    victim: Victim
    mse: float
    steps: int
    learning_rate: float
    lambda_max: float
    seconds: float
    closed_form: ClosedForm | None = None
    """None unless the victim is a random-features model."""


def train_network(
    network: Network,
    theta_0: Theta,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n c"],
    *,
    loss: SquaredError | None = None,
    optimiser: FullBatchDescent | None = None,
    tolerance: float = 1e-7,
    progress: Progress = quiet,
) -> Training:
    """Run gradient descent on the network's trained parameters, in the precision of θ0, until the
    mean squared error is at most `tolerance`."""
    loss, optimiser = loss or SquaredError(), optimiser or FullBatchDescent()
    check_tolerance(tolerance)
    started = time.perf_counter()
    X, Y = X.to(next(iter(theta_0.values()))), Y.to(next(iter(theta_0.values())))
    n, c = Y.shape
    whole, start, U = network, theta_0, span_of(network, X)
    if U is not None:
        network, theta_0, X = network.restrict(U), network.restrict_theta(theta_0, U), X @ U
    lambda_max = loss.curvature(n, c) * tangent_kernel_norm(network, theta_0, X)
    step = optimiser.learning_rate or 0.2 / lambda_max
    trained = network.trained
    theta = {
        name: tensor.clone().requires_grad_(name in trained) for name, tensor in theta_0.items()
    }
    mse = first = math.nan
    work = (
        6.0 * n * sum(tensor.numel() for tensor in theta.values())
    )  # a forward and a backward pass
    with progress("training", None) as report, threads_for(work, X.device):
        for k in range(optimiser.max_steps + 1):
            outputs = network(theta, X)
            if k % _CHECK == 0 or k == optimiser.max_steps:
                mse = float((outputs.detach() - Y).square().mean())
                first = mse if k == 0 else first
                if mse <= tolerance:
                    break
                if not mse <= 1e3 * max(first, 1.0):
                    raise TrainingDiverged(
                        f"expected the loss to fall, got a mean squared error of {mse:.3g} after "
                        f"{k} steps at "
                        f"--learning-rate {step:.3g}; "
                        f"the stability limit is {2 / lambda_max:.3g}: use --learning-rate auto or "
                        "a smaller step"
                    )
                report(k, f"mse {mse:.1e} → {tolerance:.0e}")
            gradients = torch.autograd.grad(
                loss.value(outputs, Y), [theta[name] for name in trained]
            )
            with torch.no_grad():
                for name, slope in zip(trained, gradients, strict=True):
                    theta[name] -= step * slope
        else:
            raise TrainingDidNotConverge(
                f"expected a mean squared error of {tolerance:g}, got {mse:.3g} after "
                f"{optimiser.max_steps} steps "
                f"at --learning-rate {step:.3g} "
                f"(stability limit {2 / lambda_max:.3g}); allow more --max-steps, a larger step, a "
                "larger "
                "--tolerance, or a wider network"
            )
    theta_f = {name: tensor.detach() for name, tensor in theta.items()}
    if U is not None and whole.first is not None:
        W1 = whole.first.weight
        theta_f[W1] = start[W1] + (theta_f[W1] - theta_0[W1]) @ U.T
    return Training(
        Victim(whole, start, theta_f), mse, k, step, lambda_max, time.perf_counter() - started
    )


def span_of(network: Network, X: Float[Tensor, "n d"]) -> Float[Tensor, "d n"] | None:
    """An orthonormal basis of the span of the inputs, or None if training in this basis is not
    possible, would not save time or would change the victim."""
    n, d = X.shape
    if not isinstance(network, MLP) or 2 * n > d or X.dtype != torch.float64:
        return None
    U: Tensor = torch.linalg.qr(X.T).Q
    return U


def check_tolerance(tolerance: float) -> None:
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise OptionError(
            f"expected --tolerance of a positive number, got {tolerance}; the paper uses 1e-7"
        )


def tangent_kernel_norm(
    network: Network, theta: Theta, X: Float[Tensor, "n d"], iterations: int = 300
) -> float:
    """λmax(GGᵀ) at θ by power iteration, v → Gᵀv → GGᵀv, until its relative change is below 1e-5.

    Gᵀw is linear in w, so GGᵀv is the pullback of Gᵀv along the map w ↦ Gᵀw. Both products are
    therefore computed by reverse-mode differentiation.
    """
    leaves = {
        name: tensor.detach().requires_grad_(name in network.trained)
        for name, tensor in theta.items()
    }
    moving = [leaves[name] for name in network.trained]
    outputs = network(leaves, X)
    w = torch.zeros_like(outputs, requires_grad=True)
    transposed = torch.autograd.grad(outputs, moving, w, create_graph=True)
    v = torch.randn(outputs.shape, generator=stream("power iteration", 0), dtype=torch.float64).to(
        outputs
    )
    estimate = 0.0
    for _ in range(iterations):
        v = v.detach() / torch.linalg.vector_norm(v)
        down = torch.autograd.grad(outputs, moving, v, retain_graph=True)
        (v,) = torch.autograd.grad(transposed, w, down, retain_graph=True)
        previous, estimate = estimate, float(torch.linalg.vector_norm(v))
        if abs(estimate - previous) <= 1e-5 * estimate:
            break
    if not (math.isfinite(estimate) and estimate > 0):
        raise TrainingDiverged(
            "expected a network that depends on its weights, got a tangent kernel of norm "
            f"{estimate}; use a wider "
            "network or another --seed"
        )
    return estimate


def minimum_norm(
    network: MLP, theta_0: Theta, X: Float[Tensor, "n d"], Y: Float[Tensor, "n c"]
) -> Training:
    """Compute θ* = Φ⁺y = Φᵀ(ΦΦᵀ)⁻¹y (eq:theta_opt_value), the limit of gradient descent from zero,
    without taking a step."""
    started = time.perf_counter()
    last = network.last.weight
    dtype = theta_0[last].dtype
    exact = {name: tensor.double() for name, tensor in theta_0.items()}
    Phi = network.features(exact, X.double())
    theta_star = torch.linalg.lstsq(
        Phi, Y.double(), driver="gelsd" if Phi.device.type == "cpu" else None
    ).solution.T
    theta_f = {**theta_0, last: theta_star.to(dtype).contiguous()}
    mse = float((network(theta_f, X.to(dtype)) - Y).square().mean())
    if not mse <= 1e-6 * max(1.0, float(Y.square().mean())):
        raise TrainingDidNotConverge(
            f"expected random features to interpolate {len(X)} points, got a mean squared error of "
            f"{mse:.3g} at "
            f"width {Phi.shape[1]}; use a larger --width"
        )
    lambda_max = float(torch.linalg.matrix_norm(Phi, 2).square())
    alpha = torch.linalg.lstsq(
        Phi.T, theta_star.T, driver="gelsd" if Phi.device.type == "cpu" else None
    ).solution
    apart = torch.pdist(X.double())
    form = ClosedForm(alpha.cpu(), float(apart.min()) if len(apart) else math.inf)
    return Training(
        Victim(network, theta_0, theta_f),
        mse,
        0,
        0.0,
        lambda_max,
        time.perf_counter() - started,
        form,
    )
