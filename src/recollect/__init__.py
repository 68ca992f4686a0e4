"""Recollect: read training data back out of a network's weights, to audit your own models.

>>> import recollect as rc
>>> victim = rc.Victim.load("init.safetensors", "trained.safetensors")  # doctest: +SKIP
>>> found = rc.reconstruct(victim, n=100)  # doctest: +SKIP
>>> score = rc.evaluate(found, truth)  # doctest: +SKIP
"""

from recollect.errors import InputError, RecollectError, RunError
from recollect.metrics import Score, evaluate
from recollect.options import Auto, Basis, FullSpace, Projection, Subspace
from recollect.problem import RecollectWarning
from recollect.reconstruct import reconstruct
from recollect.result import Reconstruction
from recollect.solve import GradientDescent, LevenbergMarquardt, Status
from recollect.span import Endpoints
from recollect.subspace import Spectrum, spectrum
from recollect.victim import MLP, Victim, mlp, random_features

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Auto",
    "Basis",
    "Endpoints",
    "FullSpace",
    "GradientDescent",
    "InputError",
    "LevenbergMarquardt",
    "Projection",
    "RecollectError",
    "RecollectWarning",
    "Reconstruction",
    "RunError",
    "Score",
    "Spectrum",
    "Status",
    "Subspace",
    "Victim",
    "evaluate",
    "mlp",
    "random_features",
    "reconstruct",
    "spectrum",
]
