"""How to make a victim: data, network, initial weights and training (P-train). One seed determines
all random draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.errors import OptionError
from recollect.options import check, option
from recollect.victim.activation_names import ACTIVATIONS

if TYPE_CHECKING:  # options are read by the command line, which must not wait for torch
    from pathlib import Path

    import torch

    from recollect.simulate.training import Training
    from recollect.system.progress import Progress
    from recollect.truth.data.dataset import Dataset
    from recollect.victim.mlp import MLP


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of `recollect train`. The help sentence of each field says what it means."""

    dataset: str = option(
        help="synthetic, photos, digits, cifar10, a folder of images or CIFAR-10 batches, or an "
        ".npz file."
    )
    n: int = option(
        help="Points to train on; for images, equal counts of each class in file order.",
        least=1,
        most=10**8,
    )
    width: int = option(help="Hidden width p.", least=1, most=10**8)
    dim: int = option(60, help="Input dimension d (synthetic).", least=1, most=10**8)
    rank: int = option(
        30, help="Dimension r of the subspace the data lie in (synthetic).", least=1, most=10**8
    )
    noise: float = option(
        0.5,
        help="Standard deviation σ of the label noise (synthetic).",
        least=0,
        hint="the paper uses 0.5",
    )
    keep_norms: bool = option(
        False, help="Leave each input's norm alone instead of scaling it to √d."
    )
    victim: str = option(
        "mlp",
        help="mlp: a trained network. rf: random features with the closed-form minimum-norm last "
        "layer.",
        choices=("mlp", "rf"),
    )
    depth: int = option(
        2,
        help="Number of weight matrices, the paper's L (mlp).",
        least=2,
        most=1000,
        hint="the paper uses 2, 3 and 5",
    )
    bias: bool = option(False, help="Give every layer a bias.")
    activation: str = option("relu", help="The network's activation.", choices=ACTIVATIONS)
    init: str = option(
        "fan-in",
        help="fan-in: N(0, 1/fan_in); torch: as torch.nn.Linear starts (mlp).",
        choices=("fan-in", "torch"),
    )
    loss: str = option(
        "mse-mean", help="Mean of squares, or half their sum.", choices=("mse-mean", "mse-sum")
    )
    learning_rate: float | None = option(
        None,
        help="Step size of training; auto is one tenth of the stability limit 2/λmax.",
        positive=True,
        hint="use auto",
    )
    tolerance: float = option(
        1e-7,
        help="Stop at this mean squared error.",
        positive=True,
        hint="the paper uses 1e-7",
    )
    max_steps: int = option(200_000, help="Give up after so many steps.", least=1, most=10**8)
    dtype: str = option(
        "float32", help="Precision of the training.", choices=("float32", "float64")
    )
    seed: int = option(
        0,
        help="Same seed, same machine, same number of threads: same bits.",
        column="training_seed",
        least=0,
        most=2**32 - 1,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.dataset == "synthetic" and self.rank > self.dim:
            raise OptionError(
                f"expected --rank of at most --dim {self.dim}, got {self.rank}; choose a smaller "
                "one"
            )

    def data(self, sources: Mapping[str, str] | None = None) -> Dataset:
        """The data set. `sources` gives the paths of data sets that the recipe knows by name."""
        from recollect.truth.data.load import load_dataset

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
        """The network, for inputs of dimension d and c outputs."""
        from recollect.victim.mlp import mlp, random_features

        if self.victim == "rf":
            return random_features(d, self.width, c, bias=self.bias, activation=self.activation)
        return mlp(d, self.width, c, depth=self.depth, bias=self.bias, activation=self.activation)

    def make(
        self, data: Dataset, device: torch.device, progress: Progress | None = None
    ) -> Training:
        """Draw the initial weights and train the network."""
        import torch

        from recollect.simulate.training import (
            FullBatchDescent,
            SquaredError,
            minimum_norm,
            train_network,
        )
        from recollect.system.progress import quiet
        from recollect.system.seeds import stream
        from recollect.victim.mlp import initial_theta

        network = self.network(data.inputs.shape[1], data.targets.shape[1])
        theta_0 = initial_theta(
            network,
            init=self.init,
            generator=stream("weights", self.seed),
            dtype=getattr(torch, self.dtype),
        )
        theta_0 = {name: tensor.to(device) for name, tensor in theta_0.items()}
        X, Y = data.inputs.to(device), data.targets.to(device)
        if self.victim == "rf":
            return minimum_norm(network, theta_0, X, Y)
        return train_network(
            network,
            theta_0,
            X,
            Y,
            loss=SquaredError(reduction=self.loss.removeprefix("mse-")),
            optimiser=FullBatchDescent(learning_rate=self.learning_rate, max_steps=self.max_steps),
            tolerance=self.tolerance,
            progress=progress or quiet,
        )


@dataclass(frozen=True)
class Made:
    """A victim, the data it was trained on, and how training went."""

    recipe: Recipe
    data: Dataset
    training: Training
    device: str

    @property
    def victim(self) -> Any:
        """The trained victim."""
        return self.training.victim

    @property
    def inputs(self) -> Any:
        """The training inputs, n×d: the truth."""
        return self.data.inputs

    def save(self, folder: str | Path) -> dict[str, Any]:
        """Write θ0, θf, the truth and train.json. Returns the content of train.json."""
        from pathlib import Path

        from recollect.truth.files import write_training

        return write_training(Path(folder), self)


def train(
    *,
    out: str | Path | None = None,
    device: torch.device | str = "auto",
    progress: Progress | None = None,
    **options: Any,
) -> Made:
    """Make a victim with known data: train a network until it interpolates its data.

    Parameters
    ----------
    out
        Folder for the checkpoints and the truth. If None, nothing is written.
    device
        `auto`, `cpu`, `cuda` or a torch device.
    progress
        Called to report the progress of training.
    **options
        The fields of `Recipe`: `dataset`, `n`, `width`, `depth`, `seed`, …

    Returns
    -------
    Made
        `victim`, `inputs` (the truth), `data` and `training`.
    """
    from recollect.system.device import choose_device

    try:
        recipe = Recipe(**options)
    except TypeError as error:
        raise OptionError(
            f"expected the fields of Recipe, got: {error}; see help(rc.Recipe)"
        ) from None
    return make(recipe, device=choose_device(device), progress=progress, out=out)


def make(
    recipe: Recipe,
    *,
    device: torch.device,
    progress: Progress | None = None,
    out: str | Path | None = None,
    sources: Mapping[str, str] | None = None,
) -> Made:
    """Make a victim from a recipe, as `train` does."""
    data = recipe.data(sources)
    made = Made(recipe, data, recipe.make(data, device, progress), device.type)
    if out is not None:
        made.save(out)
    return made
