"""A demonstration on built-in photographs: train a network, reconstruct the data from its two
checkpoints, compare them with the truth, and write a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from recollect.attacks.options import Exact
from recollect.attacks.reconstruct import reconstruct
from recollect.examine.inspection import inspect
from recollect.records import record_of, write_record
from recollect.report.html import image_pairs, render
from recollect.report.pictures import sheet
from recollect.system.files import write_files
from recollect.system.progress import Progress
from recollect.truth.files import read_truth
from recollect.truth.metrics import Score, evaluate
from recollect.truth.recipe import Recipe, make
from recollect.victim.victim import Victim

N = 20
WIDTH = 2000


def recipe(seed: int = 0) -> Recipe:
    """The victim of the demonstration."""
    return Recipe(dataset="photos", n=N, width=WIDTH, seed=seed)


def tell(out: Path, made_by: Recipe, *, say: Callable[[str], None], progress: Progress) -> Score:
    """Run the demonstration with its files in `out`, describing each step; returns the score."""
    began, seed = time.perf_counter(), made_by.seed
    say(
        f"1. Training a two-layer network of width {WIDTH} on {N} photographs (32×32×3) until it "
        "knows them by heart …"
    )
    made = make(made_by, device=torch.device("cpu"), progress=progress, out=out).training
    say(
        f"   done: mean squared error {made.mse:.0e} after {made.steps} steps, {made.seconds:.0f} "
        "s."
    )

    say("2. Looking at the two checkpoints alone …")
    victim = Victim.load(out / "init.safetensors", out / "trained.safetensors")
    say(f"   {inspect(victim).expectations[0]}.")

    say("3. Searching for inputs whose gradients explain the change of the last layer …")
    attack = Exact()
    found = reconstruct(victim, N, attack, seed=seed, device="cpu", progress=progress)
    files = (out / "init.safetensors", out / "trained.safetensors")
    options = {"checkpoints": [str(out)], "n": N, "seed": seed, "device": "cpu"}
    record = record_of(found, victim, attack=attack, options=options, files=files)
    write_record(out, record)
    say(
        f"   done: {found.loss:.1e} of the change is left unexplained, "
        f"{sum(stage.seconds for stage in found.stages):.0f} s."
    )

    truth = read_truth(out / "truth.safetensors")
    score = evaluate(record, truth.inputs)
    pairs = image_pairs(record, truth, score)
    true, recovered = (
        np.stack([getattr(pair, side) for pair in pairs]) for side in ("true", "recovered")
    )
    picture = sheet(true, recovered, [f"error {pair.error:.3f}" for pair in pairs])
    page = render(record, truth, score).encode(errors="replace")
    pictures = {out / "report.html": page, out / "pairs.png": picture}
    write_files(pictures, private=pictures)
    say(
        f"4. Compared with the truth: {round(score.recovered * N)} of {N} photographs recovered "
        "(error below 0.1); "
        f"median error {float(score.errors.median()):.1g}, where guessing scores "
        f"{score.chance['span']:.2f}."
    )
    say(
        f"   {time.perf_counter() - began:.0f} s in all. Recollect is for auditing your own models."
    )
    say(f"The report is {out / 'report.html'}")
    return score
