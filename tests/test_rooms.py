"""The package as a whole: what it may import where, and that it runs where little is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import recollect
from recollect.threads import threads_for


def test_the_mathematics_runs_without_the_comforts() -> None:
    """Torch, numpy, scipy, safetensors and jaxtyping alone: GPU machines are often that bare."""
    program = """
import sys
for name in ("cyclopts", "rich", "matplotlib", "PIL", "jinja2", "sklearn", "flint", "ray", "pyarrow"):
    sys.modules[name] = None  # as if it were not installed
import torch
import recollect as rc
from recollect.data import load_dataset
from recollect.training import train
from recollect.victim import initial_theta, mlp
from recollect.records import FileCheckpoint
from recollect.experiments.engines import LocalEngine
from recollect.experiments.sweep import Sweep
from recollect.experiments.table import table
data = load_dataset("synthetic", 4, dim=6, rank=3)
network = mlp(6, 80, 1)
theta = initial_theta(network, init="fan-in", generator=torch.Generator().manual_seed(0), dtype=torch.float64)
victim = train(network, theta, data.inputs, data.targets, tolerance=1e-4).victim
found = rc.reconstruct(victim, 4, rc.Projection(solver=rc.GradientDescent(iterations=5)))
print(rc.evaluate(found, data.inputs).rho)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 2


def test_everything_public_is_there_and_documented() -> None:
    for name in recollect.__all__:
        words = getattr(recollect, name).__doc__
        assert words, name
        assert not words.startswith(f"{name}("), name  # what a dataclass says when nobody wrote anything


def test_threads_are_put_back() -> None:
    cpu = torch.device("cpu")
    torch.set_num_threads(2)
    with threads_for(1.0, cpu):
        assert torch.get_num_threads() == 1
    with threads_for(1e12, cpu):
        assert torch.get_num_threads() == 2

    def failing() -> None:
        with threads_for(1.0, cpu):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        failing()
    assert torch.get_num_threads() == 2
