"""Recollect: read training data back out of a network's weights, to audit your own models.

    import recollect as rc

    victim = rc.Victim.load("init.safetensors", "trained.safetensors")
    found = rc.reconstruct(victim, n=100)
    score = rc.evaluate(found, truth)
"""

from recollect.errors import InputError, RecollectError, RunError
from recollect.metrics import Score, evaluate
from recollect.reconstruct import Basis, FullSpace, Projection, Reconstruction, RecollectWarning, Subspace, reconstruct
from recollect.solve import GradientDescent, Status
from recollect.subspace import Spectrum, spectrum
from recollect.victim import MLP, Victim, mlp, random_features

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "Basis",
    "FullSpace",
    "GradientDescent",
    "InputError",
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
