"""The whole story on built-in photographs: train, read the data back from the two checkpoints, compare, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from recollect.files import write_files
from recollect.inspection import inspect
from recollect.metrics import Score, evaluate
from recollect.progress import Progress
from recollect.recipe import Recipe
from recollect.reconstruct import reconstruct
from recollect.records import read_reconstruction, versions, write_reconstruction
from recollect.report import image_pairs, render, sheet
from recollect.truth import read_truth, write_training
from recollect.victim import Victim

N = 20
WIDTH = 2000


def tell(out: Path, *, seed: int, say: Callable[[str], None], progress: Progress) -> Score:
    """Run it all into `out`, saying what happens; returns the score."""
    began = time.perf_counter()
    say(f"1. Training a two-layer network of width {WIDTH} on {N} photographs (32×32×3) until it knows them by heart …")
    recipe = Recipe(dataset="photos", n=N, width=WIDTH, seed=seed)
    data = recipe.data()
    made = recipe.make(data, torch.device("cpu"), progress)
    write_training(
        out,
        data,
        made,
        {
            "dataset": "photos",
            "n": N,
            "width": WIDTH,
            "seed": seed,
            "mse": made.mse,
            "steps": made.steps,
            "versions": versions(),
        },
    )
    say(f"   done: mean squared error {made.mse:.0e} after {made.steps} steps, {made.seconds:.0f} s.")

    say("2. Looking at the two checkpoints alone …")
    victim = Victim.load(out / "init.safetensors", out / "trained.safetensors")
    say(f"   {inspect(victim).expectations[0]}.")

    say("3. Searching for inputs whose gradients explain the change of the last layer …")
    found = reconstruct(victim, N, seed=seed, progress=progress)
    options = {"n": N, "solver": "auto", "space": "subspace", "parameters": "last", "seed": seed}
    write_reconstruction(out, found, victim, options)
    say(
        f"   done: {found.loss:.1e} of the change is left unexplained, "
        f"{sum(stage.seconds for stage in found.stages):.0f} s."
    )

    record, truth = read_reconstruction(out), read_truth(out / "truth.safetensors")
    score = evaluate(record, truth.inputs)
    pairs = image_pairs(record, truth, score)
    true, recovered = (np.stack([getattr(pair, side) for pair in pairs]) for side in ("true", "recovered"))
    picture = sheet(true, recovered, [f"error {pair.error:.3f}" for pair in pairs])
    write_files(
        {out / "report.html": render(record, truth, score).encode(errors="replace"), out / "pairs.png": picture}
    )
    say(
        f"4. Compared with the truth: {round(score.recovered * N)} of {N} photographs recovered (error below 0.1); "
        f"median error {float(score.errors.median()):.3f}, where guessing scores {score.chance['span']:.2f}."
    )
    say(f"   {time.perf_counter() - began:.0f} s in all. Recollect is for auditing your own models.")
    say(f"The report is {out / 'report.html'}")
    return score
