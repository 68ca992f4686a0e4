"""What is searched, and where: the evidence, the coordinates of candidates, and the objectives that
judge them.

Algorithm 2 is Algorithm 1 on restricted evidence, so everything after this file sees coordinates z
and no subspace.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from recollect.attacks.options import Basis, FullSpace, Projection, Search, Subspace
from recollect.errors import OptionError, RecollectWarning, VictimError
from recollect.examine.counting import largest
from recollect.examine.subspace import Spectrum, bias_scale, check_basis, spectrum
from recollect.geometry import FreeRadius, Geometry, Slice, Sphere, random_start
from recollect.objective.base import ExactObjective, Objective
from recollect.objective.dense import DenseObjective, dense_bytes
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.implicit import ImplicitObjective
from recollect.objective.last_layer import LastLayerObjective
from recollect.objective.layerwise import LayerwiseObjective, layerwise_sizes
from recollect.shapes import Float, Tensor
from recollect.solve.gradient_descent import GradientDescent
from recollect.system.device import total_memory
from recollect.system.files import read_tensors
from recollect.system.seeds import stream
from recollect.victim.parity import Parity, parity
from recollect.victim.victim import Victim

_ALGORITHM = 13
"""Raised when the same options no longer lead to the same points: then what was saved before is not
resumed."""


@dataclass(frozen=True)
class Problem:
    """A victim, made ready for a search: evidence in the coordinates that are searched, geometry
    and precision."""

    victim: Victim
    whole: Evidence
    """In the coordinates of the inputs x, or (x, s) where points lie on a slice."""
    everywhere: Geometry
    """Where points may lie, in the same coordinates."""
    evidence: Evidence
    """In the coordinates z that are searched: of the network z ↦ f(Uz)."""
    geometry: Geometry
    """Where points may lie, in the same coordinates."""
    U: Float[Tensor, "d r"] | None
    """None: there is no restriction."""
    spectrum: Spectrum | None
    search: Search
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, victim: Victim, search: Search, device: torch.device) -> Problem:
        everywhere = _geometry(victim, search, device)
        U, found = _basis(victim, search.space, augmented=isinstance(everywhere, Slice))
        whole = Evidence.change(victim)
        if isinstance(everywhere, Slice):
            whole = whole.augmented(everywhere.s)
        dtype = _precision(search, victim)
        problem = cls(
            victim, whole, everywhere, whole, everywhere, None, found, search, device, dtype
        )
        return problem.within(U)

    def within(self, U: Float[Tensor, "d r"] | None) -> Problem:
        """The same victim in other coordinates."""
        if U is None:
            return replace(self, U=U, evidence=self.whole, geometry=self.everywhere)
        evidence, geometry = self.whole.restrict(U), self.everywhere.restricted(U)
        return replace(self, U=U, evidence=evidence, geometry=geometry)

    @property
    def r(self) -> int:
        return self.evidence.d

    @property
    def parity(self) -> Parity:
        """Of the network itself: along a single direction every homogeneous network would look
        liftable."""
        return parity(self.victim.network, self.victim.theta_f)

    def lift(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n d"]:
        """Uz: inputs x, or (x, s) where points lie on a slice."""
        return Z if self.U is None else Z @ self.U.to(Z).T

    def inputs(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n d"]:
        """x."""
        return self.lift(Z)[:, : self.victim.d]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that take part, as the evidence names them."""
        names = self.victim.select(self.search.parameters)
        first = self.evidence.network.first
        if isinstance(self.everywhere, Slice) and first is not None and first.bias is None:
            joined = self.victim.network.first
            assert joined is not None  # the bias is a column of W_1 now
            names = tuple(name for name in names if name != joined.bias)
        return names

    @property
    def unruled(self) -> tuple[str, ...]:
        """Those of them that belong to layers without a rule for the layerwise Gram."""
        return tuple(name for name in self.names if name in self.evidence.network.untapped)

    def objective(self, n: int, endpoints: Endpoints = Endpoints.FINAL) -> Objective:
        """The objective that the options of the projection attack ask for."""
        search, device, dtype = self.search, self.device, self.dtype
        gram = search.gram if isinstance(search, Projection) else "auto"
        if search.parameters == "last" and gram == "auto":
            return self.last_layer(endpoints)
        names, evidence, unruled = self.names, self.evidence, self.unruled
        if gram == "auto":
            fast = "dense" if unruled else "layerwise"
            sizes = None if unruled else layerwise_sizes(evidence, names, dtype)
            needed = dense_bytes(evidence, names, n, dtype) if sizes is None else sizes.fit_bytes(n)
            gram = fast if needed <= total_memory(device) // 4 else "cg"
        if gram == "layerwise":
            return self.layerwise(endpoints)
        if endpoints is not Endpoints.FINAL:
            raise OptionError(
                f"expected --endpoints final with --gram {gram}, got {endpoints.value}; leave it "
                "out"
            )
        if gram == "dense":
            needed, there = dense_bytes(evidence, names, n, dtype), total_memory(device)
            if needed > there:
                raise OptionError(
                    f"expected --gram dense to fit in {there / 1e9:.3g} GB, got {needed / 1e9:.3g} "
                    f"GB for {n} points; "
                    "use --gram auto"
                )
            return DenseObjective(evidence, names, device=device, dtype=dtype)
        return ImplicitObjective(evidence, names, device=device, dtype=dtype, unruled=unruled)

    def last_layer(self, endpoints: Endpoints, *, lifted: bool = False) -> LastLayerObjective:
        """The objective of the last layer alone."""
        evidence = self.evidence.at(endpoints)
        return LastLayerObjective(evidence, device=self.device, dtype=self.dtype, lifted=lifted)

    def layerwise(
        self,
        endpoints: Endpoints,
        *,
        tau: float = 0.0,
        balanced: bool = False,
        lifted: bool = False,
    ) -> LayerwiseObjective:
        """The objective of all chosen layers.

        τ > 0: with gates that open gradually, relative to the pre-activations of random points.
        """
        evidence = self.evidence.at(endpoints)
        if tau > 0:
            evidence = evidence.smoothed(
                random_start(self.geometry, 64, self.r, stream("probe", 0)), tau
            )
        return LayerwiseObjective(
            evidence,
            self.names,
            device=self.device,
            dtype=self.dtype,
            balanced=balanced,
            lifted=lifted,
        )

    def unknowns(self, n: int, objective: Objective | None = None) -> int:
        """Coordinates and coefficients of n points."""
        if isinstance(objective, ExactObjective):
            return objective.unknowns(n, self.r, self.geometry)
        return self.coordinates(n) + n * self.victim.c

    def coordinates(self, n: int) -> int:
        """n·q: the free coordinates of n points."""
        return n * self.geometry.free_dimensions(self.r)

    @property
    def equations(self) -> int:
        return sum(self.evidence.nodes[0][name].numel() for name in self.names)

    def effective_equations(self, n: int, objective: Objective | None = None) -> int:
        """The equations that remain for the coordinates of n points."""
        if isinstance(objective, ExactObjective):
            return objective.effective_equations(n)
        return self.evidence.effective_equations(self.names, n, families=1)

    def determined(self, n: int, objective: Objective | None = None) -> bool:
        """Whether there are as many effective equations as coordinates.

        With fewer, many sets of points explain the evidence equally well.
        """
        return self.coordinates(n) <= self.effective_equations(n, objective)

    def most_points(self, objective: Objective) -> int:
        """The largest n that counting allows."""
        return largest(lambda n: self.determined(n, objective), self.equations)

    def check(self, n: int) -> tuple[str, ...]:
        """Doubts that counting raises about n points. Where any points would do, an error."""
        if not 1 <= n <= 10**8:
            raise OptionError(
                f"expected --n between 1 and 10⁸, got {n:.6g}; ask for another number of points"
            )
        equations, parameters = self.equations, self.search.parameters
        if n * self.victim.c > equations:
            named, more = f"parameters {parameters}", ", or use all parameters"
            if parameters == "all":
                named, more = "all parameters", ""
            raise VictimError(
                f"expected at most {equations} coefficients for the {equations} equations of "
                f"{named}, got {n} points × {self.victim.c} outputs = {n * self.victim.c}; any "
                f"such points explain the change: ask for fewer{more}"
            )
        if self.determined(n):
            return ()
        doubt = (
            f"{self.effective_equations(n)} effective equations for {self.coordinates(n)} "
            "coordinates: exact recovery is impossible by counting; use more --parameters or a "
            "lower --rank, and do not trust a small loss"
        )
        warnings.warn(doubt, RecollectWarning, stacklevel=3)
        return (doubt,)

    def fingerprint(self, n: int | None, seed: int, at_once: int = 1) -> str:
        """A name for this very computation. A single start of gradient descent may be resumed with
        more iterations."""
        search: Search = replace(self.search, space=FullSpace())
        if (
            isinstance(search, Projection)
            and search.restarts == 1
            and isinstance(search.solver, GradientDescent)
        ):
            search = replace(search, solver=replace(search.solver, iterations=1))
        facts = (
            f"{_ALGORITHM} {self.victim.network.identity} {search} {n} {seed} {at_once} "
            f"{self.device.type} {torch.get_num_threads()} {torch.__version__}"
        )
        content = hashlib.sha256(facts.encode())
        tensors = [*(self.victim.theta_0 or {}).items(), *self.victim.theta_f.items()]
        for name, tensor in [*tensors, *([] if self.U is None else [("U", self.U)])]:
            content.update(name.encode())
            content.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
        return content.hexdigest()


def has_rules(victim: Victim, parameters: str) -> bool:
    """Whether every chosen parameter belongs to a layer with a rule, which Levenberg–Marquardt
    needs."""
    return parameters == "last" or not set(victim.select(parameters)) & set(victim.network.untapped)


def _precision(search: Search, victim: Victim) -> torch.dtype:
    asked = search.dtype if isinstance(search, Projection) else None
    several = (
        search.endpoints is not None and search.endpoints.several and search.parameters != "last"
    )
    descent = isinstance(search, Projection) and isinstance(search.solver, GradientDescent)
    if asked == "float32" and not descent:
        raise OptionError("expected --dtype float64 with --solver lm, got float32; leave it out")
    # Mean and difference of the ends are taken in the Gram, where the difference is as small as its
    # square.
    if asked == "float32" and several:
        raise OptionError(
            "expected --dtype float64 for several endpoints of all layers, got float32; leave it "
            "out"
        )
    descent = descent or not has_rules(victim, search.parameters)
    return (
        torch.float32
        if asked == "float32" or (asked is None and descent and not several)
        else torch.float64
    )


def _basis(
    victim: Victim, space: FullSpace | Subspace | Basis, *, augmented: bool
) -> tuple[Tensor | None, Spectrum | None]:
    """U, and the spectrum that it was taken from."""
    if isinstance(space, Basis):
        given = read_basis(space.U) if isinstance(space.U, str | Path) else space.U
        U = check_basis(given, victim.d)
        if augmented:  # the constant coordinate gets a coordinate of its own
            U = torch.nn.functional.pad(U, (0, 1, 0, 1))
            U[-1, -1] = 1.0
        return U, None
    if isinstance(space, FullSpace):
        return None, None
    found = spectrum(victim, augmented=augmented, leading=space.rank or 0)
    return found.basis(space.rank), found


def read_basis(path: str | Path) -> Tensor:
    """U from a file."""
    tensors, _ = read_tensors(Path(path))
    if "U" not in tensors:
        raise OptionError(
            f"expected U (d×r) in {path}, got {', '.join(list(tensors)[:4]) or 'nothing'}; save "
            "the basis under "
            "that name"
        )
    return tensors["U"]


def _geometry(victim: Victim, search: Search, device: torch.device) -> Geometry:
    radius, norm = math.sqrt(victim.d), search.norm
    if norm == "sqrt-d":
        return Sphere(radius)
    if isinstance(norm, float | int):
        return Sphere(float(norm))
    if norm != "free" and (s := _slice_scale(victim, search)) is not None:
        a = torch.zeros(victim.d + 1, dtype=torch.float64, device=device)
        a[-1] = 1.0
        return Slice(a, s)
    if norm == "slice":
        raise OptionError(
            "expected a trained bias in the first layer for --norm slice, got none; leave it out"
        )
    # Where norms do not show, a free one would be a direction in which nothing holds a point.
    return Sphere(radius) if victim.network.homogeneous else FreeRadius(radius)


def _slice_scale(victim: Victim, search: Search) -> float | None:
    """s, where weight and bias of the first layer both take part, or both do not."""
    s, first = bias_scale(victim), victim.network.first
    if s is None or first is None:
        return None
    taking_part = {first.weight, first.bias} & set(victim.select(search.parameters))
    return None if len(taking_part) == 1 else s
