"""Ten models trained in ten ways by plain PyTorch, each audited by one command without options: verdict against truth.

    python benchmarks/audits.py --out runs [--budget 10m]        what is done is not done again
    python benchmarks/audits.py --table runs

The audit sees the two state dicts and nothing else; the training inputs are scored afterwards.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

from recollect.cli import main as recollect


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


MODELS = (
    Model("plain"),
    Model("without biases, one norm", bias=False, each=True),
    Model("three layers", widths=(500, 500), lr=0.1),
    Model("narrow", n=10, widths=(60,)),
    Model("photographs", data="photos", widths=(2000,), bias=False, each=True, lr=0.002),
    Model("cross-entropy", loss="cross-entropy", lr=0.1, steps=2000),
    Model("momentum, mini-batches", momentum=0.9, lr=0.01, batch=5),
    Model("weight decay", decay=1e-4),
    Model("Adam", optimiser="Adam", lr=1e-3),
    Model("two hundred digits", n=200, lr=0.1),
)


def inputs_of(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    if model.data == "digits":
        digits = load_digits()
        X, labels = torch.tensor(digits.data[: model.n]), torch.tensor(digits.target[: model.n])
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


def train(model: Model, folder: Path) -> None:
    torch.manual_seed(0)
    X, labels = inputs_of(model)
    Y = nn.functional.one_hot(labels).float()
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
        "Adam": lambda: torch.optim.Adam(network.parameters(), lr=model.lr, weight_decay=model.decay),
    }
    optimiser = kinds[model.optimiser]()
    for _ in range(model.steps):
        chosen = torch.randperm(len(X))[: model.batch or len(X)]
        outputs = network(X[chosen])
        loss = (
            nn.functional.mse_loss(outputs, Y[chosen])
            if model.loss == "mse"
            else nn.functional.cross_entropy(outputs, labels[chosen])
        )
        if loss < 1e-6:
            break
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.save(network.state_dict(), folder / "trained.pt")
    np.savez(folder / "inputs.npz", inputs=X.numpy())
    (folder / "loss.json").write_text(json.dumps(float(loss.detach())))


def table(folder: Path) -> None:
    print("| model | training loss | verdict | candidates | called | of them within 0.1 | by truth | ρ | seconds |")
    print("|" + "---|" * 9)
    for model in MODELS:
        path = folder / model.name.replace(" ", "-").replace(",", "")
        if not (path / "score.json").exists():
            continue
        audit: dict[str, Any] = json.loads((path / "audit" / "audit.json").read_text())
        score: dict[str, Any] = json.loads((path / "score.json").read_text())
        loss = json.loads((path / "loss.json").read_text())
        calls = audit["called"] or []
        right = sum(one and near < 0.1 for one, near in zip(calls, score["closest"], strict=True))
        called = sum(calls)
        print(
            f"| {model.name} | {loss:.1e} | {audit['verdict']} | {audit['n']} | {called} | "
            f"{right if called else '–'} | {score['recovered']:.0%} of {len(score['errors'])} | "
            f"{score['rho']:.3f} | {audit['seconds']:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--only")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return
    if options.out is None:
        parser.error("--out or --table is needed")
    for model in MODELS:
        folder = options.out / model.name.replace(" ", "-").replace(",", "")
        if (folder / "score.json").exists() or (options.only and options.only != model.name):
            continue
        print(model.name, flush=True)
        train(model, folder)
        files = [str(folder / "init.pt"), str(folder / "trained.pt")]
        recollect(["audit", *files, "--out", str(folder / "audit"), "--budget", options.budget])
        score_of(folder)


def score_of(folder: Path) -> None:
    from recollect.match import signed_distances
    from recollect.metrics import evaluate
    from recollect.records import read_reconstruction
    from recollect.truth import read_truth

    found, truth = read_reconstruction(folder / "audit"), read_truth(folder / "inputs.npz").inputs
    score = evaluate(found, truth)
    X, Z = truth.double(), found.inputs.double()
    if not found.norms_identifiable:
        X, Z = (points / points.norm(dim=1, keepdim=True).clamp_min(1e-300) for points in (X, Z))
    closest = (signed_distances(X, Z) / X.norm(dim=1)[:, None]).min(0).values
    content = {
        "rho": score.rho,
        "recovered": score.recovered,
        "errors": [min(error, 1e9) for error in score.errors.tolist()],
        "closest": closest.tolist(),
    }
    (folder / "score.json").write_text(json.dumps(content))


if __name__ == "__main__":
    main()
