"""What is searched, where: a victim, the coordinates candidates have, and the spans that judge them.

Algorithm 2 is Algorithm 1 on the restricted victim, so everything after this file sees coordinates z and no subspace.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import dataclass, replace

import torch

from recollect.errors import OptionError, VictimError
from recollect.geometry import FreeRadius, Geometry, Sphere, random_start
from recollect.memory import total_memory
from recollect.options import Basis, FullSpace, Projection, Subspace
from recollect.seeds import stream
from recollect.shapes import Float, Tensor
from recollect.solve import GradientDescent
from recollect.span import (
    DenseSpan,
    Endpoints,
    ExactSpan,
    ImplicitSpan,
    LastLayerSpan,
    LayerwiseSpan,
    Parity,
    Span,
    dense_bytes,
    layerwise_bytes,
    moving,
    parity,
)
from recollect.subspace import Spectrum, check_basis, spectrum
from recollect.victim import Victim

_ALGORITHM = 8
"""Raised when the same options no longer lead to the same points: what was saved before is then not gone on from."""


class RecollectWarning(UserWarning):
    """Something the user should know before trusting a result."""


@dataclass(frozen=True)
class Problem:
    victim: Victim
    restricted: Victim
    """z ↦ f(Uz)."""
    U: Float[Tensor, "d r"] | None
    """None: z is x itself."""
    spectrum: Spectrum | None
    geometry: Geometry
    attack: Projection
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, victim: Victim, attack: Projection, device: torch.device) -> Problem:
        victim.select(attack.parameters)
        U, found = _basis(victim, attack.space)
        restricted = victim if U is None else victim.restrict(U)
        gradient_descent = uses_gradient_descent(attack, victim)
        if attack.dtype not in (None, torch.float64) and not gradient_descent:
            raise OptionError("expected --dtype float64 with --solver auto or lm, got float32; leave it out")
        dtype = attack.dtype or (torch.float32 if gradient_descent else torch.float64)
        if attack.endpoints is not None and attack.endpoints.several and attack.parameters != "last":
            # Mean and difference are taken of the Gram, where the difference is as small as its square.
            if attack.dtype is torch.float32:
                raise OptionError(
                    "expected --dtype float64 for several endpoints of all layers, got float32; leave it out"
                )
            dtype = torch.float64
        return cls(victim, restricted, U, found, _geometry(victim, attack.norm), attack, device, dtype)

    def within(self, U: Float[Tensor, "d r"] | None) -> Problem:
        """The same victim in other coordinates."""
        return replace(self, U=U, restricted=self.victim if U is None else self.victim.restrict(U))

    @property
    def r(self) -> int:
        return self.restricted.d

    @property
    def parity(self) -> Parity:
        """Of the network itself: along a single direction every homogeneous one would look liftable."""
        return parity(self.victim.network, self.victim.theta_f)

    @property
    def moving(self) -> bool:
        return moving(self.restricted)

    def lift(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n d"]:
        """x = Uz."""
        return Z if self.U is None else Z @ self.U.to(Z).T

    def span(self, n: int, endpoints: Endpoints = Endpoints.FINAL) -> Span:
        """What the options ask for."""
        victim, attack, device, dtype = self.restricted, self.attack, self.device, self.dtype
        if attack.parameters == "last" and attack.gram == "auto":
            return self.last_layer(endpoints)
        names, gram = victim.select(attack.parameters), attack.gram
        unruled = tuple(name for name in names if name in victim.network.untapped)
        if gram == "auto":
            room = total_memory(device) // 4
            fast, size = ("dense", dense_bytes) if unruled else ("layerwise", layerwise_bytes)
            gram = fast if size(victim, names, n, dtype) <= room else "cg"
        if gram == "layerwise":
            return self.layerwise(endpoints)
        if endpoints is not Endpoints.FINAL:
            raise OptionError(f"expected --endpoints final with --gram {gram}, got {endpoints.value}; leave it out")
        if gram == "dense":
            needed, there = dense_bytes(victim, names, n, dtype), total_memory(device)
            if needed > there:
                raise OptionError(
                    f"expected --gram dense to fit in {there / 1e9:.3g} GB, got {needed / 1e9:.3g} GB for {n} points; "
                    "use --gram auto"
                )
            return DenseSpan(victim, names, device=device, dtype=dtype)
        return ImplicitSpan(victim, names, device=device, dtype=dtype, unruled=unruled)

    def last_layer(self, endpoints: Endpoints, *, lifted: bool = False) -> LastLayerSpan:
        return LastLayerSpan(self.restricted, device=self.device, dtype=self.dtype, endpoints=endpoints, lifted=lifted)

    def layerwise(
        self, endpoints: Endpoints, *, tau: float = 0.0, balanced: bool = False, lifted: bool = False
    ) -> LayerwiseSpan:
        """τ > 0: with gates that open gradually, relative to what random points make of the pre-activations."""
        victim = self.restricted
        if tau > 0:
            probe = random_start(self.geometry, 64, self.r, stream("probe", 0))
            victim = victim.smoothed(probe, tau)
        return LayerwiseSpan(
            victim,
            victim.select(self.attack.parameters),
            device=self.device,
            dtype=self.dtype,
            endpoints=endpoints,
            balanced=balanced,
            lifted=lifted,
        )

    def unknowns(self, n: int, span: Span | None = None) -> int:
        """Coordinates and coefficients of n points."""
        if isinstance(span, ExactSpan):
            return span.unknowns(n, self.r, self.geometry)
        return n * (self.geometry.free_dimensions(self.r) + self.victim.c)

    @property
    def equations(self) -> int:
        return sum(self.restricted.theta_f[name].numel() for name in self.victim.select(self.attack.parameters))

    def most_points(self, span: LastLayerSpan) -> int:
        """The largest n with no more unknowns than equations."""
        fixed = self.unknowns(0, span)
        return max(0, self.equations - fixed) // max(1, self.unknowns(1, span) - fixed)

    def check(self, n: int) -> tuple[str, ...]:
        """Doubts that counting raises about n points; an error where any points would do."""
        if not 1 <= n <= 10**8:
            raise OptionError(f"expected --n between 1 and 10⁸, got {n:.6g}; ask for another number of points")
        equations, unknowns, parameters = self.equations, self.unknowns(n), self.attack.parameters
        if n * self.victim.c > equations:
            raise VictimError(
                f"expected at most {equations} coefficients for the {equations} equations of --parameters "
                f"{parameters}, got {n} points × {self.victim.c} outputs = {n * self.victim.c}; any such points "
                "explain the change: ask for fewer, or use --parameters all"
            )
        if unknowns <= equations:
            return ()
        doubt = (
            f"{equations} equations for {unknowns} unknowns: exact recovery is impossible by counting; "
            "use more --parameters or a lower --rank, and do not trust a small loss"
        )
        warnings.warn(doubt, RecollectWarning, stacklevel=3)
        return (doubt,)

    def fingerprint(self, n: int | None, seed: int, at_once: int = 1) -> str:
        """A name for this very computation. A single start of one solver may be resumed with more iterations."""
        attack, solver = self.attack, self.attack.solver
        if attack.restarts == 1 and isinstance(solver, GradientDescent):
            solver = replace(solver, iterations=1)
        options = replace(attack, space=FullSpace(), solver=solver)
        facts = (
            f"{_ALGORITHM} {self.victim.network.identity} {options} {n} {seed} {at_once} {self.device.type} "
            f"{torch.__version__}"
        )
        content = hashlib.sha256(facts.encode())
        tensors = [*(self.victim.theta_0 or {}).items(), *self.victim.theta_f.items()]
        for name, tensor in [*tensors, *([] if self.U is None else [("U", self.U)])]:
            content.update(name.encode())
            content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return content.hexdigest()


def uses_gradient_descent(attack: Projection, victim: Victim) -> bool:
    """Because it was asked for, or because some layer has no rule for anything else."""
    if isinstance(attack.solver, GradientDescent):
        return True
    return attack.parameters != "last" and bool(set(victim.select(attack.parameters)) & set(victim.network.untapped))


def _basis(victim: Victim, space: FullSpace | Subspace | Basis) -> tuple[Tensor | None, Spectrum | None]:
    if isinstance(space, Basis):
        return check_basis(space.U, victim.d), None
    if isinstance(space, FullSpace):
        return None, None
    found = spectrum(victim)
    return found.basis(space.rank), found


def _geometry(victim: Victim, norm: float | str | None) -> Geometry:
    radius = math.sqrt(victim.d)
    if isinstance(norm, str) and norm != "free":
        raise OptionError(f"expected --norm sqrt-d, free or a number, got {norm!r}; choose one of those")
    if isinstance(norm, float | int):
        return Sphere(float(norm))
    # Where norms do not show, a free one would be a direction in which nothing holds a point.
    return Sphere(radius) if victim.network.homogeneous else FreeRadius(radius)
