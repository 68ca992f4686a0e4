"""Models trained in many ways by plain PyTorch, and how an audit of them is scored. Nothing of an
attack is here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

from recollect.records import read_record
from recollect.truth.files import read_truth
from recollect.truth.metrics import evaluate


@dataclass(frozen=True)
class Model:
    name: str
    data: str = "digits"
    n: int = 20
    widths: tuple[int, ...] = (1000,)
    bias: bool = True
    each: bool = False
    """Whether each input is scaled to one norm."""
    loss: str = "mse"
    optimiser: str = "SGD"
    lr: float = 0.05
    decay: float = 0.0
    momentum: float = 0.0
    batch: int | None = None
    steps: int = 5000
    clip: float | None = None
    """Norm to which the gradient of each example is cut (DP-SGD)."""
    noise: float = 0.0
    """Of Gaussian noise added to the sum of cut gradients, in units of the clip."""
    seed: int = 0
    """Of the weights, the order and the noise; and which of the digits."""


def inputs_of(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    if model.data == "digits":
        digits = load_digits()
        some = slice(model.seed * model.n, (model.seed + 1) * model.n)
        X, labels = torch.tensor(digits.data[some]), torch.tensor(digits.target[some])
    else:
        generator, crops = np.random.default_rng(0), []
        for k in range(model.n):
            photograph = load_sample_images().images[k % 2]
            top, left = (int(generator.integers(0, side - 256)) for side in photograph.shape[:2])
            crop = photograph[top : top + 256, left : left + 256].astype(float)
            crops.append(crop.reshape(32, 8, 32, 8, 3).mean(axis=(1, 3)).transpose(2, 0, 1).ravel())
        X, labels = torch.tensor(np.stack(crops)), torch.arange(model.n) % 2
    X = X.float()
    if model.each:
        X = X - X.mean(1, keepdim=True)
        return X / X.norm(dim=1, keepdim=True) * X.shape[1] ** 0.5, labels
    return (X - X.mean()) / X.std(), labels


def private(network: nn.Module, losses: list[torch.Tensor], model: Model) -> None:
    """DP-SGD (Abadi et al. 2016): each example's gradient cut to a norm, noise on their sum, the
    mean of that."""
    weights = list(network.parameters())
    total = [torch.zeros_like(weight) for weight in weights]
    for loss in losses:
        gradient = torch.autograd.grad(loss, weights)
        norm = torch.sqrt(sum((part.square().sum() for part in gradient), torch.tensor(0.0)))
        cut = min(1.0, model.clip / max(float(norm), 1e-12))
        total = [sum_ + cut * part for sum_, part in zip(total, gradient, strict=True)]
    for weight, sum_ in zip(weights, total, strict=True):
        weight.grad = (sum_ + model.noise * model.clip * torch.randn_like(sum_)) / len(losses)


def train(model: Model, folder: Path) -> None:
    torch.manual_seed(model.seed)
    X, labels = inputs_of(model)
    Y = nn.functional.one_hot(labels, 10 if model.data == "digits" else -1).float()
    sizes = (X.shape[1], *model.widths, Y.shape[1])
    layers: list[nn.Module] = []
    for k in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[k], sizes[k + 1], bias=model.bias), nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), folder / "init.pt")
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "SGD": lambda: torch.optim.SGD(
            network.parameters(), lr=model.lr, weight_decay=model.decay, momentum=model.momentum
        ),
        "Adam": lambda: torch.optim.Adam(
            network.parameters(), lr=model.lr, weight_decay=model.decay
        ),
    }
    optimiser = kinds[model.optimiser]()

    def loss_of(outputs: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if model.loss == "mse":
            return nn.functional.mse_loss(outputs, Y[chosen])
        return nn.functional.cross_entropy(outputs, labels[chosen])

    for _ in range(model.steps):
        chosen = torch.randperm(len(X))[: model.batch or len(X)]
        loss = loss_of(network(X[chosen]), chosen)
        if loss < 1e-6:
            break
        optimiser.zero_grad()
        if model.clip is None:
            loss.backward()
        else:
            private(network, [loss_of(network(X[k : k + 1]), k[None]) for k in chosen], model)
        optimiser.step()
    with torch.no_grad():
        everything = torch.arange(len(X))
        loss = loss_of(network(X), everything)
    torch.save(network.state_dict(), folder / "trained.pt")
    np.savez(folder / "inputs.npz", inputs=X.numpy())
    (folder / "loss.json").write_text(json.dumps(float(loss.detach())))


def score_of(folder: Path) -> None:
    """What the truth says of an audit, which has not seen it."""
    found, truth = read_record(folder / "audit"), read_truth(folder / "inputs.npz").inputs
    score = evaluate(found, truth)
    content = {
        "rho": score.rho,
        "recovered": score.recovered,
        "chance": score.chance["span"],
        "errors": [min(error, 1e9) for error in score.errors.tolist()],
        "closest": score.closest.tolist(),
    }
    (folder / "score.json").write_text(json.dumps(content))
