"""A victim from nothing: data, network, first weights, training. One seed draws all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from recollect.data import Dataset, load_dataset
from recollect.errors import OptionError
from recollect.progress import Progress, quiet
from recollect.seeds import stream
from recollect.training import FullBatchDescent, SquaredError, Training, check_tolerance, minimum_norm, train
from recollect.victim import MLP, initial_theta, mlp, random_features
from recollect.victim.activations import activation as check_activation

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of `recollect train`, with the same names and the same defaults."""

    dataset: str
    n: int
    width: int
    dim: int = 60
    rank: int = 30
    noise: float = 0.5
    keep_norms: bool = False
    victim: str = "mlp"
    depth: int = 2
    bias: bool = False
    activation: str = "relu"
    init: str = "fan-in"
    loss: str = "mse-mean"
    learning_rate: float | None = None
    tolerance: float = 1e-7
    max_steps: int = 200_000
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n", "width", "dim", "rank", "depth", "max_steps"):
            value = getattr(self, name)
            if not 1 <= value <= 10**8:
                shown = f"{value:.6g}" if abs(value) < 10**300 else "a number of hundreds of digits"
                raise OptionError(f"expected {name} between 1 and 10⁸, got {shown}; choose another")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise OptionError(f"expected noise of zero or more, got {self.noise}; the paper uses 0.5")
        if not 0 <= self.seed < 2**32:
            raise OptionError(f"expected a seed between 0 and {2**32 - 1}, got {self.seed}; choose one of those")
        choices = {
            "victim": ("mlp", "rf"),
            "init": ("fan-in", "torch"),
            "loss": ("mse-mean", "mse-sum"),
            "dtype": tuple(DTYPES),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"expected {name} {' or '.join(allowed)}, got {getattr(self, name)!r}; choose one of those"
                )
        check_activation(self.activation)
        check_tolerance(self.tolerance)
        if self.dataset == "synthetic" and self.rank > self.dim:
            raise OptionError(f"expected rank of at most dim {self.dim}, got {self.rank}; choose a smaller one")
        self._training()
        self.network(1, 1)

    def _training(self) -> tuple[SquaredError, FullBatchDescent]:
        return (
            SquaredError(reduction=self.loss.removeprefix("mse-")),
            FullBatchDescent(learning_rate=self.learning_rate, max_steps=self.max_steps),
        )

    def data(self, sources: Mapping[str, str] | None = None) -> Dataset:
        """`sources`: where data sets lie that the recipe knows by name."""
        return load_dataset(
            (sources or {}).get(self.dataset, self.dataset),
            self.n,
            dim=self.dim,
            rank=self.rank,
            noise=self.noise,
            seed=self.seed,
            keep_norms=self.keep_norms,
        )

    def network(self, d: int, c: int) -> MLP:
        if self.victim == "rf":
            return random_features(d, self.width, c, bias=self.bias, activation=self.activation)
        return mlp(d, self.width, c, depth=self.depth, bias=self.bias, activation=self.activation)

    def make(self, data: Dataset, device: torch.device, progress: Progress = quiet) -> Training:
        network = self.network(data.inputs.shape[1], data.targets.shape[1])
        generator = stream("weights", self.seed)
        theta_0 = initial_theta(network, init=self.init, generator=generator, dtype=DTYPES[self.dtype])
        theta_0 = {name: tensor.to(device) for name, tensor in theta_0.items()}
        X, Y = data.inputs.to(device), data.targets.to(device)
        if self.victim == "rf":
            return minimum_norm(network, theta_0, X, Y)
        loss, optimiser = self._training()
        return train(
            network, theta_0, X, Y, loss=loss, optimiser=optimiser, tolerance=self.tolerance, progress=progress
        )
