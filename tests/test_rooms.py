"""The package as a whole: what it may import where, and that it runs where little is installed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest
import torch

import recollect
from recollect.system.device import threads_for


def test_the_mathematics_runs_without_the_comforts() -> None:
    """Torch, numpy, scipy, safetensors and jaxtyping alone: GPU machines are often that bare."""
    program = """
import sys
for name in "cyclopts rich matplotlib PIL jinja2 sklearn flint ray pyarrow".split():
    sys.modules[name] = None  # as if it were not installed
import torch
import recollect as rc
from recollect.truth.data.load import load_dataset
from recollect.simulate.training import train_network
from recollect.victim.mlp import initial_theta, mlp
from recollect.records import ResumeFile
from recollect.study.engines import LocalEngine
from recollect.study.sweep import Sweep
from recollect.study.table import table
data = load_dataset("synthetic", 4, dim=6, rank=3)
network = mlp(6, 80, 1)
generator = torch.Generator().manual_seed(0)
theta = initial_theta(network, init="fan-in", generator=generator, dtype=torch.float64)
victim = train_network(network, theta, data.inputs, data.targets, tolerance=1e-4).victim
found = rc.reconstruct(victim, 4, rc.Projection(solver=rc.GradientDescent(iterations=5)))
print(rc.evaluate(found, data.inputs).rho)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 2


def test_everything_public_is_there_and_documented() -> None:
    assert sorted(recollect.__all__) == sorted(recollect._MODULES)
    assert set(recollect.__all__) <= set(dir(recollect))
    for name in recollect.__all__:
        words = getattr(recollect, name).__doc__
        assert words, name
        assert not words.startswith(f"{name}("), name  # what a dataclass says when nobody wrote it
    with pytest.raises(AttributeError, match="nothing"):
        _ = recollect.nothing


def documented(words: str) -> set[str]:
    """The names that a numpy-style section `Parameters` documents."""
    section = re.search(r"Parameters\n\s*-+\n(.*?)(\n\s*\n\s*\w+\n\s*-+\n|\Z)", words, re.DOTALL)
    lines = [] if section is None else section[1].splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    heads = [
        line for line in lines if line.strip() and len(line) - len(line.lstrip()) == min(indents)
    ]
    return {name.strip().lstrip("*") for line in heads for name in line.split(",")}


@pytest.mark.parametrize("name", recollect.__all__)
def test_every_parameter_of_what_the_root_exports_is_documented(name: str) -> None:
    thing = getattr(recollect, name)
    if isinstance(thing, type) and (
        issubclass(thing, BaseException | Enum) or getattr(thing, "_is_protocol", False)
    ):
        return
    if name == "Recipe":  # each field has a help sentence, which a test of the options asks for
        return
    if dataclasses.is_dataclass(thing):
        parents = [base for base in thing.__mro__ if dataclasses.is_dataclass(base)]
        wanted = {field.name for field in dataclasses.fields(thing) if field.init}
        words = "\n".join(base.__doc__ or "" for base in parents)
        found = set().union(*(documented(base.__doc__ or "") for base in parents))
    else:
        signature = inspect.signature(thing)
        wanted = {one for one in signature.parameters if one not in ("self", "cls")}
        words = thing.__doc__ or ""
        found = documented(words)
    assert wanted <= found, f"{name}: {sorted(wanted - found)}"


ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
ENTRIES = re.findall(r"^\| (.+?) \| (\S+\.py) \| (\S+) \|$", ARCHITECTURE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[0])
def test_the_index_of_the_paper_leads_to_code_that_exists(entry: tuple[str, str, str]) -> None:
    _, path, name = entry
    module = importlib.import_module("recollect." + path.removesuffix(".py").replace("/", "."))
    thing = module
    for part in name.split("."):
        thing = getattr(thing, part)
    assert inspect.getsourcefile(inspect.unwrap(thing)) == str(module.__file__)


def test_every_label_of_the_paper_is_in_the_index() -> None:
    said = " ".join(entry[0] for entry in ENTRIES)
    labels = (
        *("alg:reconstr_full_space", "alg:reconstr_subspace", "prob:train", "prob:univ_loss"),
        *("prob:univ_loss_reduced", "eq:proj_full_space", "eq:proj_subspace"),
        *("eq:linear_system_for_alpha", "eq:rf_model_with_bias", "eq:theta_opt_value"),
        *("eq:p_condition", "eq:delta_condition", "lem:approx_kernel_bound"),
        *("thm:finite_recon_proof", "cor:finite_recon_proof_subspace"),
        *("as:data_on_sphere", "as:activation_function", "assumption:low-rank_data"),
    )
    assert [label for label in labels if label not in said] == []


def test_no_module_of_the_root_has_the_name_of_a_public_function() -> None:
    """Otherwise importing the module would replace the function."""
    root = Path(recollect.__file__).parent
    modules = {path.stem for path in root.iterdir() if path.suffix == ".py" or path.is_dir()}
    functions = {name for name in recollect.__all__ if inspect.isroutine(getattr(recollect, name))}
    assert functions & modules == set()
    assert {"audit", "evaluate", "inspect", "load", "reconstruct", "train"} <= functions


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert recollect.__version__ == version("recollect")


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
