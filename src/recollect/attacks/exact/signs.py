"""Σ_i s_i m_i = t, s_i ∈ {−1, +1}: the signs that lifting set aside.

A lifted objective (`objective/rows.py`) explains Δθ by even parts and one free linear part. The
linear part comes from the same points: if C_i^k are the coefficients of the even rows of point i at
end k, then the coefficients w_k of the linear part satisfy

    Σ_i s_i C_i^k z_iᵀ = w_k,
            weighted by what they multiply (`sign_system` of the objective), Kr·c equations.

With as many equations as points this is least squares. With fewer it is a subset sum of low
density: the signs are a short vector of the lattice spanned by the rows of (Kannan's embedding,
with b = (s + 1)/2)

    [ 2I | κ·2Mᵀ        | 0 ]
    [ −1 | −κ(t + M1)ᵀ  | 1 ]

and LLL finds it. κ is one over the noise of an equation, which is known roughly: a few are tried,
and the solution is believed only if chance could not have made its residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from recollect.shapes import Float, Tensor

_CERTAIN = math.log(1e-3)
_MOST = 300
"""LLL takes a second for 100 points and a quarter of a minute for 200."""
_DIGITS = (3, 4, 5, 6, 7)
"""To how many digits the entries of the lattice are kept, those nearest to what the noise leaves
tried first."""


@dataclass(frozen=True)
class Signs:
    """Signs of n points, whether they are settled, and in words how or why not."""

    values: Float[Tensor, " n"]
    settled: bool
    how: str


def find_signs(
    M: Float[Tensor, "e n"],
    t: Float[Tensor, " e"],
    noise: float,
    explains: Callable[[Float[Tensor, " n"]], bool],
) -> Signs:
    """By least squares where the equations determine every sign, else by LLL.

    `noise` is about the error of an equation. Signs are settled if chance could not have made them
    fit, and if with them the points still explain Δθ.
    """
    M, t = M.cpu().double(), t.cpu().double()
    n = M.shape[1]
    guess = torch.linalg.lstsq(M, t[:, None], driver="gelsd").solution[:, 0]
    values = torch.where(guess < 0, -1.0, 1.0).double()

    def settled(values: Tensor) -> bool:
        return (
            _log_accidents(M, t, values) < _CERTAIN
            and _each_matters(M, t, values)
            and explains(values)
        )

    if settled(values):
        return Signs(values, True, "signs by least squares")
    entry = float(M.norm(dim=1).max()) / math.sqrt(n)
    known = math.log10(max(entry, 1e-300) / max(noise, 1e-300))
    if known < 1 or n > _MOST:
        why = (
            f"{n} are too many for lattice reduction"
            if n > _MOST
            else "the points are not exact enough"
        )
        return Signs(
            values, False, f"{len(t)} equations do not determine {n} signs by themselves, and {why}"
        )
    if find_spec("flint") is None:
        return Signs(
            values,
            False,
            f"{n} signs from {len(t)} equations need lattice reduction, and python-flint is not "
            "installed: install it",
        )
    for digits in sorted(
        (digits for digits in _DIGITS if digits < known + 2), key=lambda digits: abs(digits - known)
    ):
        found = _lattice(M, t, digits)
        if found is not None and settled(found):
            return Signs(found, True, f"signs by LLL, equations known to {digits} digits")
    return Signs(
        values,
        False,
        "no choice of signs fits what is left over; the points are not exact enough, or some are "
        "wrong",
    )


def _each_matters(M: Tensor, t: Tensor, s: Tensor) -> bool:
    """Whether every single flip would make the residual a thousand times less likely, as noise
    alike in all equations.

    A pair of points that nearly cancel has large columns; all together fit well then, whatever the
    small ones say.
    """
    rest = M @ s - t
    rises = 4 * M.square().sum(0) - 4 * s * (M.T @ rest)  # of ‖rest‖², by flipping each
    noise = rest.square().mean() + 1e-26 * M.square().sum(0).max() / len(t)
    return bool((rises > -2 * _CERTAIN * noise).all())


def _log_accidents(M: Tensor, t: Tensor, s: Tensor) -> float:
    """The logarithm of how many of the 2ⁿ choices of signs would fit as well by chance.

    For random signs equation j is off by about N(0, σ_j²), σ_j the norm of M's row; all e of them
    together are within the ball of radius ε√e, ε the root mean square of what is left, with a
    probability of about Π_j min(1, g ε/(√(2π) σ_j)), where gᵉ is the volume of the ball of radius
    √e in e dimensions.
    """
    e = len(t)
    epsilon = float((M @ s - t).square().mean().sqrt())
    sigma = M.norm(dim=1)
    g = math.exp((e / 2 * math.log(math.pi * e) - math.lgamma(e / 2 + 1)) / e)
    rounding = 1e-13 * float(sigma.max())  # an equation without content says nothing
    chance = (g * epsilon / (math.sqrt(2 * math.pi) * sigma.clamp_min(1e-300))).clamp(1e-300, 1.0)
    chance = torch.where(sigma > rounding, chance, 1.0)
    return M.shape[1] * math.log(2) + float(chance.log().sum())


def _lattice(M: Tensor, t: Tensor, digits: int) -> Tensor | None:
    from flint import fmpz_mat

    n = M.shape[1]
    scale = 10.0**digits / float(M.norm(dim=1).max()) * math.sqrt(n)
    columns = (2 * scale * M).T.round().to(torch.int64).tolist()
    goal = (-scale * (t + M.sum(1))).round().to(torch.int64).tolist()
    rows = [[0] * i + [2] + [0] * (n - i - 1) + columns[i] + [0] for i in range(n)]
    rows.append([-1] * n + goal + [1])
    for row in fmpz_mat(rows).lll().tolist():
        entries = [int(value) for value in row]
        if abs(entries[-1]) == 1 and all(abs(value) == 1 for value in entries[:n]):
            return torch.tensor(
                [float(entries[-1] * value) for value in entries[:n]], dtype=torch.float64
            )
    return None
