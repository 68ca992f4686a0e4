"""ΔW_1 = Σ_i d_i x_iᵀ, with d_ui = 0 wherever unit u is closed at x_i: points from these zeros.

Every step of training adds a combination of gradients b_i x_iᵀ to W_1, and b_ui = 0 while unit u of
a ReLU network is closed at x_i. That holds all along the way, whatever the loss, the step size, the
momentum, the batches and the other layers are. It holds for gradients and for running averages of
gradients as well. Nothing is linearised, so the points are as exact as the arithmetic of training.

Where the n points are linearly independent, ΔW_1 = PΣVᵀ has rank n. With x_i = V y_i,

    d_i = P q_i,    [q_1 … q_n] = Q = Σ Y⁻¹.                                          (unmix)

So d_i is the combination of the columns of P that vanishes on the units closed at y_i. Which units
those are, the weights tell: they are closed before and after training. Given points that are
roughly right, q_i is the direction in which P vanishes on these units. A robust estimate leaves
aside the few of them that had been open on the way. All q_i together give the points, and thereby
better known gates. n − 1 zeros determine q_i; all others are evidence that the point is right.

For single gradients this is the idea of SPEAR (Dimitrov et al. 2024), which finds zeros by sampling
rows. Here they are found by alternating between gates and directions: from the points of the
search, or from random points, since the gates that a pattern of zeros stands for are a linear
classifier of the rows of W_1 (`Unmixing.complete`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import bdtrc

from recollect.geometry import Geometry, Slice, Sphere
from recollect.shapes import Bool, Float, Tensor

TRUSTED = 0.05
"""Largest expected error, relative to its norm, of a point that counts as read off."""
_ZERO = 0.02
"""A number counts as zero if it is smaller than this share of the median over units that opened."""
_ABOVE_NOISE = 50.0
"""A number also counts as zero only below this multiple of the median over closed units."""
_CHANCE = 0.05
"""Least probability that a number which is no zero looks like one."""
_BY_CHANCE = 1.5
"""Factor on the number of zeros to expect among other units, which say nothing against a point."""
_RULE_OF_THREE = 3.0
"""Where none of many was a mistake, up to three may have been (95 %)."""
_SIGNIFICANT = 1e-9
"""Probability below which the zeros of a point are not there by chance."""
_MOSTLY = 0.5
"""Least share of the closed units whose numbers must vanish."""
_APART = 0.01
"""Least distance of two points, relative to their norms."""
_ROUNDS = 16
"""Rounds of `refine` at most: points from the gates, and gates from the points."""
_SETTLED = 1e-10
"""Relative move of the points below which they have settled."""
_ROBUST_STEPS = 4
"""Reweighted steps for each q_i in a round."""
_BEYOND = 1.3
"""The scale of the residuals is that of this many units per point at least."""
_TINY = 1e-11
"""Smallest residual that is told from zero, for rows of length one."""
_LOADING = 1e-12
"""Eigenvalues below this share of the trace count as zero."""
_RIDGE = 1e-9
"""Loading of the least-squares classifier, relative to the trace."""
_CHUNK = 2_000_000
"""Numbers held at once for the matrices of inverse iteration."""
_UNHELD = 1e8
"""Variance of a direction that nothing determines."""
_ABOVE = 5.0
"""Length of the row of a unit that moved, as a multiple of what noise makes of it."""
_EMPTY = 1e-6
"""A unit whose row is shorter than this share of the longest one did not move."""
_ROWS = 10
"""Units per point that random starts look at."""
_LEAST_ROWS = 200
_ALTERNATIONS, _LAST = 16, 8
"""Rounds from a random point with gates taken from the pattern of zeros, and then without."""
_QUANTILE = 0.3
"""Share of all units on which a direction found from a random point is to vanish."""
_CLASSIFIED = 0.75
"""Share of the units that the gates of a point must agree with, for a column from a random start.
Patterns of zeros that are not those of a point are classified no better than noise."""
_INDEPENDENT = 0.01
"""Distance of a new column from the span of those that are known."""
_ENOUGH = 0.6
"""Share of the columns from which on the others can be found by refining."""


@dataclass(frozen=True)
class FirstLayer:
    """What training did to the first layer, and its weights, in coordinates z of a search.

    Parameters
    ----------
    change
        ΔW_1 or [ΔW_1 | s·Δb_1].
    weights
        W_1 or [W_1 | b_1/s], at each node.
    geometry
        Where points may lie: a sphere or a slice, so that their lengths are known.
    rank
        The rank of the change, outside of these coordinates too. Fewer points than that would be
        blends, whose zeros are real all the same.
    noise
        Root mean square of the entries of the change that are left outside of that rank.
    """

    change: Float[Tensor, "p r"]
    weights: tuple[Float[Tensor, "p r"], ...]
    geometry: Geometry
    rank: int
    noise: float = 0.0


@dataclass(frozen=True)
class Unmixed:
    """Points, and how well the zeros of their columns agree with their gates.

    Parameters
    ----------
    Z
        The points, in coordinates of the search.
    verified
        Whether chance is excluded: so many of the numbers d_ui vanish where unit u is closed at z_i
        before and after training, and so few of the others.
    errors
        The expected error of each point, relative to its norm.
    """

    Z: Float[Tensor, "n r"]
    verified: Bool[Tensor, " n"]
    errors: Float[Tensor, " n"]

    @property
    def trusted(self) -> Bool[Tensor, " n"]:
        """The points that count as read off."""
        return self.verified & (self.errors < TRUSTED)


class Unmixing:
    """(unmix) for n points. Raises `ValueError` where ΔW_1 does not have the rank n."""

    def __init__(self, first: FirstLayer, n: int) -> None:
        P, S, Vh = torch.linalg.svd(first.change, full_matrices=False)
        if not 1 <= n == first.rank <= len(S) or not bool(S[n - 1] > _EMPTY * S[0]):
            raise ValueError(f"expected a change of rank {n}")
        self.n, self._S, self._V = n, S[:n], Vh[:n].T
        self._geometry = first.geometry.restricted(self._V)
        self._W = torch.stack([W @ self._V for W in first.weights])
        lengths = P[:, :n].norm(dim=1)
        # Noise would give a unit that did not move a direction like any other.
        moves = first.change.norm(dim=1) > _ABOVE * first.noise * math.sqrt(n)
        self._moved = (lengths > _EMPTY * lengths.max()) & moves
        # Each unit counts alike, whatever the weights behind it are.
        self._P = P[:, :n] / lengths.clamp_min(1e-300)[:, None] * self._moved[:, None]
        middle = torch.nn.functional.normalize(self._W.mean(0), dim=1)
        gram = middle.T @ middle
        ridge = (_RIDGE * gram.trace() + 1e-300) * torch.eye(n).to(gram)
        self._classifier = torch.linalg.solve(gram + ridge, middle.T)
        self._middle = middle

    @property
    def flops(self) -> float:
        """Approximate operations of `complete` per round and start."""
        rows = min(len(self._P), max(_LEAST_ROWS, _ROWS * self.n))
        return 2.0 * rows * self.n**2 * (4 * _ALTERNATIONS + 3 * _LAST)

    def refine(self, Z: Float[Tensor, "n r"]) -> Unmixed:
        """Points from the gates of Z, gates from the points, until both have settled."""
        return self._refined(Z @ self._V)

    def complete(
        self,
        known: Unmixed | None,
        generator: torch.Generator,
        *,
        starts: int,
        rounds: int,
        in_time: Callable[[], bool] = lambda: True,
    ) -> Unmixed | None:
        """All points, from random ones, given those that are trusted already.

        Columns that are found stay, and the other points are sought where they allow them to be.
        Where a round adds no trusted point, the next one keeps only the columns of trusted points,
        or starts from nothing.
        """
        best = known
        Q, again = self._trusted_columns(best), False
        for _ in range(rounds):
            if (best is not None and bool(best.trusted.all())) or not in_time():
                break
            before = Q.shape[1]
            Q = self._joined(Q, self._drawn(Q, generator, starts))
            stuck = Q.shape[1] == before
            if stuck or Q.shape[1] >= _ENOUGH * self.n:
                found = self._filled(Q)
                stuck = stuck or Q.shape[1] == self.n
                if found is not None and _count(found) > _count(best):
                    best, stuck = found, True
            if stuck:
                # Every other time from nothing: what is trusted wrongly would be in the way.
                Q, again = self._trusted_columns(best if again else None), not again
        return best

    # Points, gates and columns.

    def _unit_inputs(self, Y: Float[Tensor, "k n"]) -> Float[Tensor, "e p k"]:
        return self._W @ Y.T

    def _closed(self, Y: Float[Tensor, "k n"]) -> Bool[Tensor, "p k"]:
        """Units that are closed at a point before and after training."""
        return (self._unit_inputs(Y) < 0).all(0)

    def _deepest(self, Y: Float[Tensor, "k n"], share: float) -> Bool[Tensor, "p k"]:
        """This share of the closed units that moved, those first that are closed most clearly."""
        inputs = self._unit_inputs(Y).amax(0)
        inputs = inputs.where((inputs < 0) & self._moved[:, None], torch.inf)
        count = inputs.isfinite().sum(0)
        keep = (share * count).ceil().clamp_min(3.0 * self.n).minimum(count)
        rank = inputs.argsort(dim=0, stable=True).argsort(dim=0, stable=True)
        return rank < keep

    def _columns(self, Y: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        """Q = ΣY⁻¹, each column of length one."""
        return torch.nn.functional.normalize(self._S[:, None] * torch.linalg.pinv(Y), dim=0)

    def _points(self, Q: Float[Tensor, "n n"]) -> Float[Tensor, "n n"] | None:
        """Y = Q⁻¹Σ, each row scaled to where points may lie; None where Q is singular."""
        inverse, failed = torch.linalg.inv_ex(Q)
        Y: Tensor = inverse * self._S
        if isinstance(self._geometry, Slice):
            Y = Y * (self._geometry.s / (Y @ self._geometry.a.to(Y)))[:, None]
        else:
            assert isinstance(self._geometry, Sphere)
            Y = self._geometry.radius * torch.nn.functional.normalize(Y, dim=1)
            Y = Y * self._sides(Q, Y)[:, None]
        return None if int(failed) or not bool(Y.isfinite().all()) else Y

    def _sides(self, Q: Float[Tensor, "n n"], Y: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
        """±1 for each point: on its own side of the origin d_i vanishes on the closed units."""
        sizes = (self._P @ Q).abs()  # at most one, and zero for units that did not move
        here, there = (
            sizes.where(closed, torch.nan).nanmean(dim=0).nan_to_num(torch.inf)
            for closed in (self._closed(Y), self._closed(-Y))
        )
        return torch.where(there < here, -1.0, 1.0).to(Y)

    def _vanishing(
        self,
        Q: Float[Tensor, "n k"],
        units: Bool[Tensor, "p k"],
        *,
        steps: int = _ROBUST_STEPS,
        share: float = 0.5,
        factor: float = 1.5,
    ) -> Float[Tensor, "n k"]:
        """For each column the direction near it in which P vanishes on most of these units.

        Inverse iteration with Cauchy's weights 1/(1 + (|Pq|/σ)²), where σ is `factor` times the
        quantile `share` of |Pq|: units on which Pq does not vanish lose their weight.
        """
        rows = units.any(1)
        P, units = self._P[rows], units[rows]
        count = units.sum(0)
        # n − 1 residuals can vanish without meaning anything, so σ is one of the others.
        place = (share * count).ceil().clamp_min(math.ceil(_BEYOND * self.n)).minimum(count)
        place = (place.long() - 1).clamp_min(0)[None]
        for _ in range(steps if len(P) else 0):
            sizes = (P @ Q).abs()
            ranked = sizes.where(units, torch.inf).sort(dim=0).values
            scale = (factor * ranked.gather(0, place)).clamp_min(_TINY)
            nearest = self._nearest_null(P, units / (1 + (sizes / scale).square()), Q)
            Q = torch.where(count >= self.n, nearest, Q)
        return Q

    def _nearest_null(
        self, P: Float[Tensor, "p n"], weights: Float[Tensor, "p k"], Q: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n k"]:
        """A step of inverse iteration on PᵀWP for each column of weights."""
        n, k = Q.shape
        A = torch.zeros(k, n * n).to(Q)
        chunk = max(1, _CHUNK // n**2)  # all columns share the products of the entries of a row
        for start in range(0, len(P), chunk):
            some = P[start : start + chunk]
            pairs = (some[:, :, None] * some[:, None, :]).reshape(len(some), n * n)
            A += weights[start : start + chunk].T @ pairs
        A = A.view(k, n, n)
        trace = A.diagonal(dim1=1, dim2=2).sum(1)
        # Where A vanishes in several directions, the loading keeps q among them.
        loaded = A + (_LOADING * trace + 1e-300)[:, None, None] * torch.eye(n).to(A)
        new, failed = torch.linalg.solve_ex(loaded, Q.T[:, :, None])
        new = new[:, :, 0].T
        length = new.norm(dim=0)
        sound = (failed == 0) & length.isfinite() & (length > 0)
        sign = torch.where((new * Q).sum(0) >= 0, 1.0, -1.0).to(Q)
        return torch.where(sound, new / length * sign, Q)

    def _untangled(self, Q: Float[Tensor, "n n"], Y: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        """Columns without the multiples of others that keep them from vanishing.

        Where q_j = q + c·q_k, the two columns have the ratio c on all units that are closed at y_j
        and not at y_k. So the median of the ratios is c, and q_j − c·q_k has more zeros.
        """
        numbers, Q = self._P @ Q, Q.clone()
        closed = self._closed(Y) & self._moved[:, None]
        for j in range(self.n):
            others = numbers[closed[:, j]]
            usual = float(_usual(numbers[self._moved, j].abs()))
            there = others.abs() > _ZERO * others.abs().amax(0) if len(others) else others > 0
            for _ in range(3 if len(others) else 0):
                own = others[:, j]
                zeros = int((own.abs() < 0.05 * _ZERO * usual).sum())
                if zeros >= 0.98 * len(own):
                    break
                ratios = (own[:, None] / others).where(there, torch.nan)
                c = ratios.nanmedian(dim=0).values.nan_to_num(0.0, 0.0, 0.0)
                c[j] = 0.0
                left = (own[:, None] - c * others).abs() < 0.05 * _ZERO * usual
                k = int(left.sum(0).argmax())
                if int(left[:, k].sum()) <= zeros + max(2, 0.02 * len(own)):
                    break
                Q[:, j] = torch.nn.functional.normalize(Q[:, j] - c[k] * Q[:, k], dim=0)
                numbers[:, j] = self._P @ Q[:, j]
                others = numbers[closed[:, j]]
        return Q

    def _refined(self, Y: Float[Tensor, "n n"]) -> Unmixed:
        Q = self._columns(Y)
        for round in range(_ROUNDS):
            # Units first that are closed so clearly that points which are a little off close them
            # too.
            share = min(1.0, 0.5 + round / _ROUNDS)
            Q = self._untangled(self._vanishing(Q, self._deepest(Y, share)), Y)
            new = self._points(Q)
            if new is None:
                break
            moved = float(((new - Y).norm(dim=1) / Y.norm(dim=1).clamp_min(1e-300)).max())
            Y = new
            if moved < _SETTLED and share == 1.0:
                break
        return self._judged(Y)

    # From random points.

    def _trusted_columns(self, known: Unmixed | None) -> Float[Tensor, "n k"]:
        if known is None:
            empty: Tensor = self._S.new_zeros(self.n, 0)
            return empty
        columns: Tensor = self._columns(known.Z @ self._V)[:, known.trusted]
        return columns

    def _drawn(
        self, Q: Float[Tensor, "n k"], generator: torch.Generator, starts: int
    ) -> Float[Tensor, "n m"]:
        """Columns that belong to gates, from random points. The columns Q are known.

        A pattern of zeros says which units a point closes, that is, on which side of each row of
        W_1 it lies; the point follows by least squares, and from it a better pattern.
        """
        # q_j belongs to y_j alone: (Σ⁻¹q_j)·y_i = 0 for all other points.
        dual = torch.linalg.qr(Q / self._S[:, None]).Q
        most = max(_LEAST_ROWS, _ROWS * self.n)
        few = self._moved.nonzero()[:, 0]
        if len(few) > most:
            few = few[torch.randperm(len(few), generator=generator)[:most]]
        chosen = torch.zeros_like(self._moved)
        chosen[few] = True
        Y = torch.randn(starts, self.n, generator=generator, dtype=torch.float64)
        Y = Y - (Y @ dual) @ dual.T
        closed = (self._unit_inputs(Y).amax(0) < 0) & chosen[:, None]
        new = torch.stack(
            [torch.linalg.eigh(P.T @ P)[1][:, 0] for P in (self._P[some] for some in closed.T)], 1
        )
        every = chosen[:, None].expand(-1, starts)
        for step in range(_ALTERNATIONS + _LAST):
            new = self._vanishing(new, every, steps=3, share=_QUANTILE, factor=1.0)
            if step < _ALTERNATIONS:
                sizes = (self._P @ new).abs()
                pattern = 1 - 2 * (sizes < sizes[few].median(dim=0).values).to(Q)
                Y = (self._classifier @ (pattern * self._moved[:, None])).T
                Y = Y - (Y @ dual) @ dual.T
                closed = (self._unit_inputs(Y).amax(0) < 0) & chosen[:, None]
                new = self._vanishing(new, closed, steps=1)
        return new

    def _joined(
        self, Q: Float[Tensor, "n k"], new: Float[Tensor, "n m"]
    ) -> Float[Tensor, "n more"]:
        """Known columns and those new ones that have zeros where some point closes units."""
        sizes = (self._P @ new).abs()[self._moved]
        zero = sizes < 0.5 * _ZERO * _usual(sizes)
        pattern = 1 - 2 * zero.to(Q)
        sides = self._middle[self._moved] @ (self._classifier[:, self._moved] @ pattern)
        agree = (sides * pattern > 0).double().mean(0)
        for k in agree.argsort(descending=True, stable=True).tolist():
            if Q.shape[1] == self.n or agree[k] < _CLASSIFIED:
                break
            if int(zero[:, k].sum()) < 1.5 * self.n:
                continue
            q = new[:, k : k + 1]
            apart = q - Q @ torch.linalg.lstsq(Q, q).solution if Q.shape[1] else q
            if float(apart.norm()) > _INDEPENDENT:
                Q = torch.cat([Q, q], dim=1)
        return Q

    def _filled(self, Q: Float[Tensor, "n k"]) -> Unmixed | None:
        """Points from these columns, and from any others in place of those that are missing."""
        rest = torch.linalg.svd(Q).U[:, Q.shape[1] :]
        Y = self._points(torch.cat([Q, rest], dim=1))
        return None if Y is None else self._refined(Y)

    # What the zeros say.

    def _judged(self, Y: Float[Tensor, "n n"]) -> Unmixed:
        Q, closed = self._columns(Y), self._closed(Y)
        sizes = (self._P @ Q).abs()
        verified, mistaken, covariances = [], [], []
        # With one point the units that did not move are its zeros.
        counting = self._moved if self.n > 1 else torch.ones_like(self._moved)
        for own, shut, q in zip(sizes.T, closed.T, Q.T, strict=True):
            level, usual = _zero_level(own[shut & self._moved], own[~shut & self._moved])
            zero = own < level
            sure = _by_no_chance(
                int((zero & shut).sum()),
                int(shut.sum()),
                int((zero & ~shut).sum()),
                int((~shut).sum()),
                self.n - 1,
            )
            verified.append(sure)
            expected = _BY_CHANCE * (1 + float((~shut).sum()) * level / max(usual, 1e-300))
            mistaken.append(max(0.0, float((zero & ~shut & counting).sum()) - expected))
            known = shut & self._moved if sure else torch.zeros_like(shut)
            covariances.append(self._covariance(own, known, q))
        errors = self._spread(Y, Q, covariances)
        # Two points differ in a share of gates that is the angle between them, over π. Half of
        # these are closed at the point found.
        gates = 2 * math.pi * torch.tensor(mistaken, dtype=torch.float64) / len(self._P)
        if self.n == 1:
            # A single direction is that of the change whatever the optimiser made of it (for Adam,
            # sign(x)). Only gates tell, and no mistake among few of them says little.
            gates = gates + 2 * math.pi * _RULE_OF_THREE / len(self._P)
        errors = errors.nan_to_num(torch.inf).maximum(gates.to(errors))
        errors = errors.where(self._apart(Y), torch.inf)
        return Unmixed(Y @ self._V.T, torch.tensor(verified, device=Y.device), errors)

    def _apart(self, Y: Float[Tensor, "n n"]) -> Bool[Tensor, " n"]:
        """Whether each point differs from all others: a column that was found twice would make the
        same point of both."""
        apart = torch.cdist(Y, Y) / self._geometry.norms(Y).clamp_min(1e-300)
        apart.fill_diagonal_(torch.inf)
        different: Tensor = (apart > _APART).all(1)
        return different

    def _covariance(
        self, sizes: Float[Tensor, " p"], units: Bool[Tensor, " p"], q: Float[Tensor, " n"]
    ) -> Float[Tensor, "n n"]:
        """Of q_i, across itself, from what it leaves on the units where it should vanish.

        Directions in which nothing holds q_i have the variance `_UNHELD`. For instance, where x_j
        leaves all units closed that x_i does, q_i + c·q_j vanishes on them for every c.
        """
        P, left = self._P[units], sizes[units]
        across = torch.eye(self.n).to(q) - torch.outer(q, q)
        if not len(P):
            return _UNHELD * across
        scale = (1.5 * left.median()).clamp_min(_TINY)
        A = (P / (1 + (left / scale).square())[:, None]).T @ P
        whole = A.trace() + 1e-300
        values, vectors = torch.linalg.eigh(across @ A @ across + whole * torch.outer(q, q))
        variances = scale.square() / values.clamp_min(1e-300)
        variances = variances.where(values > _LOADING * whole, _UNHELD)
        covariance: Tensor = across @ (vectors * variances) @ vectors.T @ across
        return covariance

    def _spread(
        self,
        Y: Float[Tensor, "n n"],
        Q: Float[Tensor, "n n"],
        covariances: list[Float[Tensor, "n n"]],
    ) -> Float[Tensor, " n"]:
        """Expected errors: a change δ of q_j moves y_i by −(Q⁻¹δ)_i y_j, apart from its length."""
        inverse = torch.linalg.pinv(Q)
        total = torch.zeros(self.n).to(Y)
        for j, covariance in enumerate(covariances):
            moves = ((inverse @ covariance) * inverse).sum(1).clamp_min(0)
            moves[j] = 0.0
            total += moves * Y[j].square().sum()
        errors: Tensor = total.sqrt() / self._geometry.norms(Y).clamp_min(1e-300)
        return errors


def _count(known: Unmixed | None) -> int:
    return -1 if known is None else int(known.trusted.sum())


def _usual(sizes: Tensor) -> Tensor:
    """The usual size of the numbers of a column that are no zeros; up to four fifths may be."""
    place = max(1, math.ceil(0.8 * len(sizes)))
    return sizes.kthvalue(place, dim=0).values


def _zero_level(shut: Float[Tensor, " a"], other: Float[Tensor, " b"]) -> tuple[float, float]:
    """The size below which a number counts as zero, and the usual size of one that is not."""
    usual = float(other.median()) if len(other) else 0.0
    noise = max(float(shut.median()), _TINY) if len(shut) else _TINY
    return min(_ZERO * usual, _ABOVE_NOISE * noise), usual


def _by_no_chance(zeros: int, shut: int, others: int, opened: int, free: int) -> bool:
    """Whether so many zeros among the closed units, beyond those that are free, exclude chance."""
    chance = max(_CHANCE, (others + 1) / (opened + 2))
    more, trials = zeros - free, shut - free
    return (
        more > 0
        and zeros >= _MOSTLY * shut
        and others * shut <= _MOSTLY * zeros * opened
        and float(bdtrc(more - 1, trials, chance)) < _SIGNIFICANT
    )
