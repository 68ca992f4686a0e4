"""Options of the built-in attacks, and how attacks are named in words. Nothing here imports
torch."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from recollect.attacks.base import Attack, Context, Cost, Needs
from recollect.attacks.exact.tuning import Tuning
from recollect.errors import OptionError
from recollect.objective.endpoints import Endpoints
from recollect.options import AUTO, Option, build, check, merged, option, schema, words
from recollect.solve.gradient_descent import GradientDescent
from recollect.solve.levenberg_marquardt import LevenbergMarquardt

if TYPE_CHECKING:
    from recollect.attacks.result import Reconstruction
    from recollect.shapes import Tensor
    from recollect.system.device import Machine
    from recollect.victim.victim import Victim


@dataclass(frozen=True, kw_only=True)
class FullSpace:
    """Algorithm 1: candidates anywhere in R^d."""


@dataclass(frozen=True, kw_only=True)
class Subspace:
    """Algorithm 2: candidates in the span of the leading right singular vectors of ΔW_1.

    Parameters
    ----------
    rank
        r, the number of singular vectors. None: r from the gap in the spectrum.
    """

    rank: int | None = option(
        None,
        help="Dimension of the subspace; auto takes it from the gap in the spectrum of ΔW1.",
        least=1,
        most=10**8,
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The paper's true-subspace variant: candidates in the span of a given matrix.

    Parameters
    ----------
    U
        A d×r matrix, or the path of a .safetensors file that holds one under the name U.
    """

    U: Tensor | Path = option(
        name="basis", help="A .safetensors file with U (d×r): search within its span instead."
    )


@dataclass(frozen=True, kw_only=True)
class Search:
    """What the built-in attacks have in common: they minimise ‖P⊥_G Δθ‖²/‖Δθ‖² over n points.

    Parameters
    ----------
    space
        Where candidates lie: `FullSpace()` (Algorithm 1), `Subspace()` (Algorithm 2) or
        `Basis(U=…)`.
    parameters
        `last`, `all`, or names of tensors or layers joined by commas.
    norm
        A radius, `"sqrt-d"`, `"free"` or `"slice"`. None: √d where the network is positively
        homogeneous and hides norms; a slice where the first layer has a trained bias; else free.
    endpoints
        Where gradients are taken. None: the attack chooses.
    restarts
        Random starts; the one with the smallest loss is kept.
    tolerance
        The loss at which to stop.
    """

    space: FullSpace | Subspace | Basis = option(
        Subspace(),
        help="subspace: Algorithm 2, within the span of ΔW1. full: Algorithm 1. basis: within the "
        "span of --basis.",
        members={"subspace": Subspace, "full": FullSpace, "basis": Basis},
    )
    parameters: str = option(
        "last", help="last, all, or names of tensors or layers joined by commas."
    )
    endpoints: Endpoints | None = option(
        None,
        help="Take gradients after training (final), before it (initial), at both, or at both and "
        "halfway (path). "
        "auto: both for the exact attack (path for all layers), final for projection.",
        enum=Endpoints,
    )
    norm: float | str | None = option(
        None,
        help="Norm of the points: sqrt-d, a number, free, or slice (found through the bias of the "
        "first layer). auto: sqrt-d if the network hides norms, slice if there is such a bias, "
        "else free.",
        choices=("sqrt-d", "free", "slice"),
        positive=True,
        hint="use sqrt-d, free, slice, or a positive number",
    )
    restarts: int = option(
        1,
        help="Random starts; the one with the smallest loss is kept.",
        least=1,
        most=10**6,
        hint="one is a single run",
    )
    tolerance: float = option(
        0.0,
        help="Stop at this share of the change left unexplained; 0 runs all iterations.",
        column="attack_tolerance",
        least=0,
        hint="0 runs all iterations",
    )

    def __post_init__(self) -> None:
        check(self)

    def calibrated(self, victim: Victim) -> bool:
        """Whether confidence was tested on networks like this one.

        Of 12 points called in a small convolutional network 5 were wrong, so only MLPs count.
        """
        from recollect.victim.mlp import MLP

        return isinstance(victim.network, MLP)


@dataclass(frozen=True, kw_only=True)
class Exact(Search):
    """Levenberg–Marquardt in stages: features at both ends of training, respawning, signs
    (docs/method.md).

    Where a parameter belongs to a layer without a rule, the attack falls back to the paper's
    gradient descent.

    Parameters
    ----------
    iterations
        Largest number of steps of each run.
    rounds
        Largest number of respawns at each endpoint.
    retrain
        Whether to train on the points that were found, and to correct them by the result
        (`attacks/exact/retrace.py`): `"always"` or `"never"`. None: where that is quick, and where
        the residual limits how accurate the points are.
    unmix
        Whether to read points off the zeros of ΔW_1 (`attacks/exact/unmix.py`): `"never"`, or
        `"only"`, without any search. None: where that is possible, and a search where it is not.
    tuning
        Thresholds of the stages.
    """

    iterations: int = option(
        200,
        help="Largest number of iterations of each run (10000 for gd, 200 for the others).",
        least=1,
        most=10**6,
        hint="200 is plenty",
    )
    rounds: int = option(
        30,
        help="Largest number of respawns at each endpoint; five times as many where training did "
        "not move the features.",
        least=0,
        most=10**6,
        hint="30 is plenty",
    )
    retrain: str | None = option(
        None,
        choices=("always", "never"),
        help="Train on the points that were found, to correct them and to see whether that leads "
        "to the trained weights. auto: where that is quick, or the residual limits how accurate "
        "the points are.",
    )
    unmix: str | None = option(
        None,
        choices=("never", "only"),
        help="Read points off the units that did not move for them: never, or only so, without a "
        "search. auto: where the first layer is linear, closed units get no gradient (ReLU), and "
        "ΔW1 has the rank n; a search where that does not give all points.",
    )
    tuning: Tuning = field(default=Tuning(), metadata={"rule": None})

    @property
    def needs(self) -> Needs:
        """θ0; and n, unless the last layer alone is attacked: its residual shows the number of
        points."""
        return Needs(n=self.parameters != "last")

    def cost(self, victim: Victim, n: int, machine: Machine) -> Cost:
        """What the search for n points will take."""
        from recollect.attacks.cost import victim_cost

        return victim_cost(self, victim, n, machine)

    def run(self, victim: Victim, n: int | None, context: Context) -> Reconstruction:
        """Run the stages."""
        from recollect.attacks.exact.run import run

        return run(self, victim, n, context)


@dataclass(frozen=True, kw_only=True)
class Projection(Search):
    """The paper's attack: one solver from random starts (Algorithms 1 and 2).

    Parameters
    ----------
    solver
        `GradientDescent()`, the paper's, or `LevenbergMarquardt()`.
    gram
        How gradient descent solves for α: `layerwise`, `dense`, `cg`, or `auto` (one Gram of
        features for the last layer, `layerwise` for more, `cg` where some layer has no rule).
    dtype
        `float32` or `float64`. None: float32 for gradient descent, float64 for Levenberg–Marquardt.
    """

    solver: GradientDescent | LevenbergMarquardt = option(
        GradientDescent(),
        help="gd: projected gradient descent, the paper's. lm: Levenberg–Marquardt. auto is "
        "another name for "
        "--attack exact.",
        members={"gd": GradientDescent, "lm": LevenbergMarquardt},
    )
    gram: str = option(
        "auto",
        help="How gd solves for the coefficients; auto is layerwise where every layer has a rule.",
        choices=("auto", "layerwise", "dense", "cg"),
    )
    dtype: str | None = option(
        None,
        help="Precision of the search; auto is float32 for gd and float64 for lm, which needs it.",
        column="attack_dtype",
        choices=("float32", "float64"),
    )
    needs: ClassVar[Needs] = Needs()

    def __post_init__(self) -> None:
        if isinstance(self.solver, Auto):
            return
        super().__post_init__()
        if self.gram != "auto" and not isinstance(self.solver, GradientDescent):
            raise OptionError(
                f"expected --gram auto with --solver lm, got {self.gram}; leave it out"
            )

    def cost(self, victim: Victim, n: int, machine: Machine) -> Cost:
        """What the search for n points will take."""
        from recollect.attacks.cost import victim_cost

        return victim_cost(self, victim, n, machine)

    def run(self, victim: Victim, n: int | None, context: Context) -> Reconstruction:
        """Run the solver from each random start and keep the best."""
        from recollect.attacks.projection import run

        return run(self, victim, n, context)


@dataclass(frozen=True, kw_only=True)
class Auto:
    """The former name of the exact attack, as a solver: use `Exact` instead.

    Parameters
    ----------
    iterations, rounds
        As in `Exact`.
    """

    iterations: int = 200
    rounds: int = 30


def current(attack: Any) -> Any:
    """The attack itself; `Projection(solver=Auto())` of version 0.1.0 as the attack that it is
    called now."""
    if not (isinstance(attack, Projection) and isinstance(attack.solver, Auto)):
        return attack
    warnings.warn("Projection(solver=Auto(…)) is now Exact(…)", DeprecationWarning, stacklevel=3)
    if attack.gram != "auto" or attack.dtype not in (None, "float64"):
        raise OptionError(
            "expected --gram auto and --dtype float64 with --solver auto, got others; leave them "
            "out"
        )
    shared = {one.name: getattr(attack, one.name) for one in fields(Search)}
    return Exact(**shared, iterations=attack.solver.iterations, rounds=attack.solver.rounds)


ATTACKS: Mapping[str, type] = {"exact": Exact, "projection": Projection}
"""The built-in attacks by name."""


def attack_options() -> dict[str, Option]:
    """The options of all built-in attacks together."""
    return merged(schema(attack) for attack in ATTACKS.values())


def attack_class(name: str) -> type[Attack]:
    """A built-in attack, or `package.module:Class`, looked for in the current folder too.

    Naming a class runs the code of its module: only call this with a name that the user gave.
    """
    if name in ATTACKS:
        return ATTACKS[name]
    cls = imported(name, "--attack", "a class")
    needed = [part for part in ("needs", "cost", "calibrated", "run") if not hasattr(cls, part)]
    if not isinstance(cls, type) or needed:
        what = (
            f"a class without {', '.join(needed)}" if isinstance(cls, type) else type(cls).__name__
        )
        raise OptionError(
            f"expected --attack to name a class with needs, cost, calibrated and run, got {name}, "
            f"{what}; see "
            "docs/write-an-attack.md"
        )
    return cls


def imported(name: str, flag: str, what: str) -> Any:
    """The object that `package.module:name` names. Its module is run: it is the caller's code."""
    package, _, attribute = name.partition(":")
    if not package or not attribute:
        known = f"{', '.join(ATTACKS)} or " if flag == "--attack" else ""
        raise OptionError(f"expected {flag} {known}package.module:name, got {name!r}; name {what}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(package), attribute)
    except (Exception, SystemExit) as error:  # whatever importing the caller's code raises
        how = f"{type(error).__name__}: {error}"
        raise OptionError(
            f"expected {flag} to name {what}, got {name}, {how}; check the name"
        ) from None


def attack_name(given: Mapping[str, Any]) -> str:
    """Which attack some options name. `--solver gd|lm` alone means the projection attack, `auto`
    the exact one."""
    solver, name = given.get("solver"), given.get("attack")
    if name is None:
        return "projection" if solver in ("gd", "lm") else "exact"
    if solver == "auto" and name != "exact":
        raise OptionError(
            f"expected --solver gd or lm with --attack {name}, got auto; leave it out"
        )
    return str(name)


def build_attack(given: Mapping[str, Any]) -> Attack:
    """The attack that plain values by name describe: `attack`, and its options."""
    name = attack_name(given)
    options = {key: value for key, value in given.items() if key != "attack"}
    if options.get("solver") == "auto":
        del options["solver"]
    if name == "exact" and options.get("dtype") in (AUTO, "float64"):
        del options["dtype"]  # its only precision, which may be said
    made = build(attack_class(name), options, owner=f"--attack {name}")
    assert isinstance(made, Attack)
    return made


def attack_words(attack: Attack) -> dict[str, Any]:
    """The attack as plain values: its name and its options. `build_attack` makes it again."""
    attack = current(attack)
    for name, cls in ATTACKS.items():
        if type(attack) is cls:
            solver = {"solver": "auto"} if isinstance(attack, Exact) else {}
            return {"attack": name, **solver, **words(attack)}
    return {"attack": f"{type(attack).__module__}:{type(attack).__qualname__}", **words(attack)}
