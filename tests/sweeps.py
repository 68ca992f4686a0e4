"""A small plan, the command that runs it, and its table without times: for sweeps by any engine."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

PLAN = """
[common]
dataset = "synthetic"
n = 5
dim = 6
rank = 3
dtype = "float64"
width = [40, 60]
training_seed = [0, 1]
tolerance = 1e-5

[[grid]]
solver = "gd"
method = ["full", "subspace"]
subspace_rank = "known"
iterations = 300
reconstruction_seed = [0, 1]

[[grid]]
solver = "auto"
"""


def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


def without_times(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return [
            {name: value for name, value in row.items() if not name.endswith("_seconds")}
            for row in csv.DictReader(stream)
        ]


def sweep_command(path: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "recollect",
        "sweep",
        str(path),
        "--out",
        str(out),
        "--device",
        "cpu",
        *more,
    ]
