"""Success rates on three kinds of victims where the search used to get stuck.

    python benchmarks/targets.py --part threshold --seeds 20:40 [--points 20 --rank 10 --dim 20]
                                 [--ratios 2.0,1.8,1.6,1.4]
    python benchmarks/targets.py --part number --seeds 0:20
    python benchmarks/targets.py --part biases --seeds 0:10 [--data photographs] [--norm free]

threshold: random features without bias, true basis, p = ratio·n·r features. A run succeeds if every
point is within 0.1, up to sign. number: the README's synthetic task with an unknown number of
points. biases: networks with PyTorch's default initialisation; images of equally many classes,
standardised and scaled to norm √d; the share of points within 0.1. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import numpy as np
import torch
from search import photographs
from sklearn.datasets import load_digits

import recollect as rc
from recollect.shapes import Tensor
from recollect.simulate.training import minimum_norm, train_network
from recollect.system.seeds import stream
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import MLP, initial_theta, mlp, random_features

CLOSE = 0.1
BIASED = {
    "64-100-10, all layers, n = 20": (20, 100, 2, "all"),
    "64-60-10, all layers, n = 10": (10, 60, 2, "all"),
    "64-500-500-10, last layer, n = 20": (20, 500, 3, "last"),
}
"""Points, width, depth and parameters."""


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
            attack = rc.Exact(space=rc.Basis(U=data.basis))
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
        found = rc.reconstruct(made.victim, None)
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
    else:
        parts = [photographs(half)[0] for half in ("choose", "report")]
        X, labels = np.concatenate(parts), np.repeat([0, 1], [len(part) for part in parts])
        classes = 2
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
            attack = rc.Exact(parameters=parameters, norm=norm)
            score = rc.evaluate(rc.reconstruct(victim, n, attack, seed=seed), X)
            seconds.append(time.perf_counter() - began)
            within += (score.errors <= CLOSE).tolist()
            rho.append(score.rho)
        print(
            f"{data}, {name.replace('64', str(d), 1)}: {statistics.mean(within):.0%} of points "
            f"within {CLOSE}, median ρ {statistics.median(rho):.3f} "
            f"({min(rho):.3f}–{max(rho):.3f}), median {statistics.median(seconds):.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("threshold", "number", "biases"), required=True)
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--dim", type=int, default=20)
    parser.add_argument("--ratios", default="2.0,1.8,1.6,1.4")
    parser.add_argument("--data", choices=("digits", "photographs"), default="digits")
    parser.add_argument("--norm", choices=("free", "slice"))
    parser.add_argument("--only", default="", help="Part of the name of a network with biases.")
    given = parser.parse_args()
    warnings.simplefilter("ignore", rc.RecollectWarning)
    torch.set_num_threads(1)
    seeds = range(*map(int, given.seeds.split(":")))
    if given.part == "threshold":
        ratios = [float(ratio) for ratio in given.ratios.split(",")]
        threshold(seeds, given.points, given.rank, given.dim, ratios)
    elif given.part == "number":
        number(seeds)
    else:
        biases(seeds, given.data, given.norm, given.only)


if __name__ == "__main__":
    main()
