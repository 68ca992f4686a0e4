"""Success rates on victims where the search used to get stuck.

    python benchmarks/targets.py --part threshold --seeds 20:40 [--points 20 --rank 10 --dim 20]
                                 [--ratios 2.0,1.8,1.6,1.4]
    python benchmarks/targets.py --part number --seeds 0:20
    python benchmarks/targets.py --part biases --seeds 0:10 [--data photographs] [--norm free]
    python benchmarks/targets.py --part rates --seeds 20:23
    python benchmarks/targets.py --part hundred --seeds 0:10 --cifar cifar10.npz [--threads 2]

threshold: random features without bias, true basis, p = ratio·n·r features. A run succeeds if every
point is within 0.1, up to sign. number: the README's synthetic task with an unknown number of
points. biases: networks with PyTorch's default initialisation; images of equally many classes,
standardised and scaled to norm √d; the share of points within 0.1. rates: the same, n = 10, width
60, with other step sizes of training, with and without retraining on the points. hundred: a hundred
images of CIFAR-10, other ones for each seed, two layers of width 4000, evidence of the last layer
alone. One thread, unless `--threads` says otherwise. `--without-retraining` leaves out the last
stage. The script also runs with the package of earlier versions on the path, to compare them.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import recollect as rc
from recollect.shapes import Tensor
from recollect.simulate.training import (
    FullBatchDescent,
    SquaredError,
    minimum_norm,
    tangent_kernel_norm,
    train_network,
)
from recollect.system.seeds import stream
from recollect.truth.data.builtin import photos
from recollect.truth.data.dataset import from_images
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import MLP, initial_theta, mlp, random_features

PARTS = ("threshold", "number", "biases", "rates", "hundred")
CLOSE = 0.1
COMMON: dict[str, Any] = {}
BIASED = {
    "64-100-10, all layers, n = 20": (20, 100, 2, "all"),
    "64-60-10, all layers, n = 10": (10, 60, 2, "all"),
    "64-500-500-10, last layer, n = 20": (20, 500, 3, "last"),
}
"""Points, width, depth and parameters."""


def exact(**options: Any) -> rc.Exact:
    """The attack with these options, and those of the command line."""
    return rc.Exact(**options, **COMMON)


def weights(network: MLP, init: str, seed: int) -> dict[str, Tensor]:
    drawn = stream("weights", seed)
    return initial_theta(network, init=init, generator=drawn, dtype=torch.float64)


def threshold(seeds: range, n: int, r: int, d: int, ratios: list[float]) -> None:
    for ratio in ratios:
        found, seconds = 0, []
        for seed in seeds:
            data = synthetic(n=n, dim=d, rank=r, noise=0.5, seed=seed)
            network = random_features(d, round(ratio * n * r), 1)
            made = minimum_norm(
                network, weights(network, "fan-in", seed), data.inputs, data.targets
            )
            began = time.perf_counter()
            attack = exact(space=rc.Basis(U=data.basis))
            points = rc.reconstruct(made.victim, n, attack, seed=seed)
            seconds.append(time.perf_counter() - began)
            errors = rc.evaluate(points, data.inputs).errors_up_to_sign
            found += bool((errors <= CLOSE).all())
        print(
            f"n = {n}, r = {r}, p/(nr) = {ratio}: {found} of {len(seeds)}, "
            f"median {statistics.median(seconds):.1f} s",
            flush=True,
        )


def number(seeds: range) -> None:
    right = clear = wrongly_clear = 0
    seconds = []
    for seed in seeds:
        made = rc.train(
            dataset="synthetic", n=20, dim=20, rank=10, noise=0.5, width=1000, depth=2, seed=seed
        )
        began = time.perf_counter()
        found = rc.reconstruct(made.victim, None, exact())
        seconds.append(time.perf_counter() - began)
        same = len(found.inputs) == 20
        right += same
        clear += bool(found.n_clear)
        wrongly_clear += bool(found.n_clear) and not same
        print(f"seed {seed}: n = {len(found.inputs)}, clear {found.n_clear}", flush=True)
    print(
        f"n = 20 found for {right} of {len(seeds)} seeds, clear for {clear}, clear but wrong for "
        f"{wrongly_clear}; median {statistics.median(seconds):.1f} s"
    )


def images(data: str, n: int, seed: int) -> tuple[Tensor, Tensor, int]:
    if data == "digits":
        loaded = load_digits()
        X, labels, classes = loaded.data, loaded.target, 10
    else:  # 32×32 crops of two photographs, shrunk to 16×16
        crops, labels = photos()
        small = crops.reshape(len(crops), 16, 2, 16, 2, 3).mean((2, 4))
        X, classes = small.reshape(len(crops), -1), 2
    order = np.random.default_rng(1000 + seed).permutation(len(X))
    some = [order[labels[order] == k][: n // classes] for k in range(classes)]
    chosen = np.concatenate(some)
    inputs = torch.from_numpy(X[chosen]).double()
    inputs = inputs - inputs.mean()
    inputs = inputs.shape[1] ** 0.5 * inputs / inputs.norm(dim=1, keepdim=True)
    targets = torch.nn.functional.one_hot(torch.from_numpy(labels[chosen]).long(), 10).double()
    return inputs, targets, inputs.shape[1]


def biases(seeds: range, data: str, norm: str | None, only: str) -> None:
    for name, (n, width, depth, parameters) in BIASED.items():
        if only not in name:
            continue
        within, rho, seconds = [], [], []
        for seed in seeds:
            X, Y, d = images(data, n, seed)
            network = mlp(d, width, 10, depth=depth, bias=True)
            victim = train_network(network, weights(network, "torch", seed), X, Y).victim
            began = time.perf_counter()
            attack = exact(parameters=parameters, norm=norm)
            score = rc.evaluate(rc.reconstruct(victim, n, attack, seed=seed), X)
            seconds.append(time.perf_counter() - began)
            within += (score.errors <= CLOSE).tolist()
            rho.append(score.rho)
            print(
                f"seed {seed}: {int((score.errors <= CLOSE).sum())} of {n}, ρ {score.rho:.3f}, "
                f"{seconds[-1]:.1f} s",
                flush=True,
            )
        print(
            f"{data}, {name.replace('64', str(d), 1)}: {statistics.mean(within):.0%} of points "
            f"within {CLOSE}, median ρ {statistics.median(rho):.3f} "
            f"({min(rho):.3f}–{max(rho):.3f}), median {statistics.median(seconds):.1f} s",
            flush=True,
        )


def rates(seeds: range) -> None:
    from recollect.examine.balance import imbalance  # earlier versions have none

    for share in (0.02, 0.1, 0.3, 0.6, 0.9):
        mismatch, without, rho, broken = [], [], [], []
        for seed in seeds:
            X, Y, d = images("digits", 10, seed)
            network = mlp(d, 60, 10, depth=2, bias=True)
            theta = weights(network, "torch", seed)
            curvature = SquaredError().curvature(*Y.shape)
            limit = 2 / (curvature * tangent_kernel_norm(network, theta, X))
            descent = FullBatchDescent(learning_rate=share * limit, max_steps=10**6)
            victim = train_network(network, theta, X, Y, optimiser=descent, tolerance=1e-6).victim
            never, always = (
                rc.reconstruct(victim, 10, rc.Exact(parameters="all", retrain=one), seed=seed)
                for one in ("never", "always")
            )
            mismatch.append(math.nan if always.mismatch is None else always.mismatch)
            broken.append(imbalance(victim) or math.nan)
            without.append(rc.evaluate(never, X).rho)
            rho.append(rc.evaluate(always, X).rho)
        told = [
            ", ".join(f"{x:.3f}" for x in values) for values in (without, rho, mismatch, broken)
        ]
        print(
            f"step {share:g} of the stability limit: ρ {told[0]} without retraining, {told[1]} "
            f"with it, mismatch {told[2]}, imbalance {told[3]}",
            flush=True,
        )


def hundred(seeds: range, cifar: str) -> None:
    arrays = np.load(cifar)
    images, labels = arrays["images"], arrays["labels"]
    rho, seconds, complete = [], [], 0
    for seed in seeds:
        chosen = np.concatenate(
            [np.flatnonzero(labels == k)[10 * seed : 10 * seed + 10] for k in range(10)]
        )
        data = from_images(images[chosen], labels[chosen], 100, classes=10)
        network = mlp(data.inputs.shape[1], 4000, 10, depth=2)
        theta = weights(network, "fan-in", seed)
        victim = train_network(network, theta, data.inputs, data.targets).victim
        began = time.perf_counter()
        found = rc.reconstruct(victim, 100, exact(parameters="last"), seed=seed)
        seconds.append(time.perf_counter() - began)
        score = rc.evaluate(found, data.inputs)
        rho.append(score.rho)
        within = int((score.errors <= CLOSE).sum())
        complete += within == 100
        print(f"seed {seed}: {within} of 100, ρ {score.rho:.4f}, {seconds[-1]:.1f} s", flush=True)
    print(
        f"all points for {complete} of {len(seeds)} seeds, median ρ {statistics.median(rho):.4f} "
        f"({min(rho):.4f}–{max(rho):.4f}), median {statistics.median(seconds):.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--dim", type=int, default=20)
    parser.add_argument("--ratios", default="2.0,1.8,1.6,1.4")
    parser.add_argument("--data", choices=("digits", "photographs"), default="digits")
    parser.add_argument("--norm", choices=("free", "slice"))
    parser.add_argument("--only", default="", help="Part of the name of a network with biases.")
    parser.add_argument("--cifar", help="File of --part hundred, with `images` and `labels`.")
    parser.add_argument("--without-retraining", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore", rc.RecollectWarning)
    torch.set_num_threads(given.threads)
    if given.without_retraining:
        COMMON["retrain"] = "never"
    seeds = range(*map(int, given.seeds.split(":")))
    if given.part == "threshold":
        ratios = [float(ratio) for ratio in given.ratios.split(",")]
        threshold(seeds, given.points, given.rank, given.dim, ratios)
    elif given.part == "number":
        number(seeds)
    elif given.part == "rates":
        rates(seeds)
    elif given.part == "hundred":
        hundred(seeds, given.cifar)
    else:
        biases(seeds, given.data, given.norm, given.only)


if __name__ == "__main__":
    main()
