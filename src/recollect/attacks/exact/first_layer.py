"""What training did to the first layer, for `unmix.py`; None where its zeros say nothing.

They say something where the first layer is a trained linear map of the input, where a closed unit
gets no gradient (ReLU; not tanh, GELU or a leaky ReLU), where the spectrum of the change has a gap,
and where the lengths of the points are known: on a sphere, or on a slice.
"""

from __future__ import annotations

import math

import torch

from recollect.attacks.exact.unmix import FirstLayer
from recollect.attacks.problem import Problem
from recollect.errors import VictimError
from recollect.examine.subspace import first_change, spectrum
from recollect.geometry import Slice, Sphere, random_start
from recollect.shapes import Float, Tensor, Theta
from recollect.system.seeds import stream
from recollect.victim.network import Layer

_PROBES = 16


def first_layer(problem: Problem) -> FirstLayer | None:
    """In coordinates of the problem, on the CPU and in float64."""
    whole, geometry = problem.whole, problem.everywhere
    layer = whole.network.first
    if (
        layer is None
        or layer.weight not in whole.target
        or not isinstance(geometry, Slice | Sphere)
    ):
        return None
    s = geometry.s if isinstance(geometry, Slice) else None
    if s is None and layer.bias is not None and any(bool(t[layer.bias].any()) for t in whole.nodes):
        return None  # where units open depends on a bias that is no part of the points
    if not _closed_units_get_no_gradient(problem, layer):
        return None

    def rows(theta: Theta, factor: float) -> Float[Tensor, "p r"]:
        W = theta[layer.weight].detach().cpu().double()
        if s is not None and layer.bias is not None:  # a torch module keeps its bias
            W = torch.cat([W, factor * theta[layer.bias].detach().cpu().double()[:, None]], dim=1)
        return W if problem.U is None else W @ problem.U.to(W)

    weights = tuple(rows(theta, 1 / s if s else 1.0) for theta in whole.nodes)
    change = rows(whole.target, s or 1.0)
    if not all(bool(torch.isfinite(one).all()) for one in (change, *weights)):
        return None
    try:
        found = spectrum(problem.victim, augmented=s is not None, leading=0)
    except VictimError:  # the layer did not move
        return None
    if not found.found:
        return None
    whole_change = first_change(problem.victim, augmented=s is not None)
    assert whole_change is not None
    inside = found.basis()
    left = whole_change.double().cpu().square().sum() - (
        (whole_change.double().cpu() @ inside.double().cpu()).square().sum()
    )
    entries = max(1, len(change) * (whole_change.shape[1] - found.rank))
    noise = math.sqrt(max(0.0, float(left)) / entries)
    return FirstLayer(change, weights, _on_cpu(problem), found.rank, noise)


def _closed_units_get_no_gradient(problem: Problem, layer: Layer) -> bool:
    """Tried at a few points: ∂f/∂t_u is zero where t_u < 0, and mostly not where t_u > 0.

    Training may have closed the layers behind it: for the latter its start will do as well.
    """
    victim = problem.victim
    Z = random_start(problem.geometry, _PROBES, problem.r, stream("gates", 0))
    X = problem.inputs(Z).requires_grad_()
    opened = False
    for ends in (victim.theta_f, victim.theta_0):
        if ends is None:
            continue
        theta = {
            name: value.detach().cpu().double() if value.is_floating_point() else value.cpu()
            for name, value in ends.items()
        }
        with torch.enable_grad():
            outputs, taps = victim.network.taps(theta, X)
            Y = next((tap.Y for tap in taps if tap.layer.weight == layer.weight), None)
            if Y is None or Y.dim() != 2:
                return False
            weight = torch.linspace(1.0, 2.0, outputs.shape[1], dtype=outputs.dtype)
            (back,) = torch.autograd.grad((outputs * weight).sum(), Y)
        closed = Y < 0
        if not bool(closed.any()) or bool(back[closed].any()):
            return False
        opened = opened or bool((back[~closed] != 0).double().mean() > 0.5)
    return opened


def _on_cpu(problem: Problem) -> Slice | Sphere:
    geometry = problem.geometry
    assert isinstance(geometry, Slice | Sphere)
    return Slice(geometry.a.cpu(), geometry.s) if isinstance(geometry, Slice) else geometry
