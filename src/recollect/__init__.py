"""Recollect: read training data back out of a network's weights, to audit your own models.

>>> import recollect as rc
>>> victim = rc.load("init.safetensors", "trained.safetensors")  # doctest: +SKIP
>>> found = rc.reconstruct(victim, n=100)  # doctest: +SKIP
>>> score = rc.evaluate(found, truth)  # doctest: +SKIP
>>> rc.audit("init.pt", "trained.pt").verdict  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.attacks.base import Attack, Context, Cost, Needs
    from recollect.attacks.options import Auto, Basis, Exact, FullSpace, Projection, Subspace
    from recollect.attacks.reconstruct import reconstruct
    from recollect.attacks.result import Reconstruction, Stage, Withheld
    from recollect.auditing.call import audit
    from recollect.auditing.result import Audit
    from recollect.auditing.verdict import Verdict
    from recollect.errors import InputError, RecollectError, RecollectWarning, RunError
    from recollect.examine.inspection import Inspection, inspect
    from recollect.examine.subspace import Spectrum, spectrum
    from recollect.objective.endpoints import Endpoints
    from recollect.objective.evidence import Evidence
    from recollect.solve.gradient_descent import GradientDescent
    from recollect.solve.levenberg_marquardt import LevenbergMarquardt
    from recollect.solve.loop import Status
    from recollect.truth.metrics import Score, evaluate
    from recollect.truth.recipe import Recipe, train
    from recollect.victim.mlp import MLP, mlp, random_features
    from recollect.victim.victim import Victim, load

_HOMES = {
    "attacks.base": "Attack Context Cost Needs",
    "attacks.options": "Auto Basis Exact FullSpace Projection Subspace",
    "attacks.reconstruct": "reconstruct",
    "attacks.result": "Reconstruction Stage Withheld",
    "auditing.call": "audit",
    "auditing.result": "Audit",
    "auditing.verdict": "Verdict",
    "errors": "InputError RecollectError RecollectWarning RunError",
    "examine.inspection": "Inspection inspect",
    "examine.subspace": "Spectrum spectrum",
    "objective.endpoints": "Endpoints",
    "objective.evidence": "Evidence",
    "solve.gradient_descent": "GradientDescent",
    "solve.levenberg_marquardt": "LevenbergMarquardt",
    "solve.loop": "Status",
    "truth.metrics": "Score evaluate",
    "truth.recipe": "Recipe train",
    "victim.mlp": "MLP mlp random_features",
    "victim.victim": "Victim load",
}
"""Public names by the module that defines them. Each is imported when it is first used: the command
line shows its help without waiting for torch."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "MLP",
    "Attack",
    "Audit",
    "Auto",
    "Basis",
    "Context",
    "Cost",
    "Endpoints",
    "Evidence",
    "Exact",
    "FullSpace",
    "GradientDescent",
    "InputError",
    "Inspection",
    "LevenbergMarquardt",
    "Needs",
    "Projection",
    "Recipe",
    "RecollectError",
    "RecollectWarning",
    "Reconstruction",
    "RunError",
    "Score",
    "Spectrum",
    "Stage",
    "Status",
    "Subspace",
    "Verdict",
    "Victim",
    "Withheld",
    "audit",
    "evaluate",
    "inspect",
    "load",
    "mlp",
    "random_features",
    "reconstruct",
    "spectrum",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("recollect")
    if name not in _MODULES:
        raise AttributeError(f"module 'recollect' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"recollect.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
