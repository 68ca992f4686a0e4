"""The README and the docs, word for word: every command block runs, and sentences that say what
comes out of it hold.

    python tests/promises.py [--seeds 0:3] [--only README.md]

The blocks are read from the pages and run in their order in an empty folder, which holds what the
reader is said to have: two checkpoints, a model, the plans. Slow commands are left out (`SLOW`) and
named at the end, with the checks that stand for them. `SAYS` lists sentences with what makes them
true, over several seeds; a sentence that is no longer on its page is an error, so that page and
check change together. It takes half an hour or more on two cores. It is not part
of `make test`, where tests/test_promises.py only checks that the blocks and the sentences are still
on their pages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", *(f"docs/{name}.md" for name in ("audit", "experiments", "guarantees")))
PAGES += ("docs/write-an-attack.md", "docs/benchmarks.md", "docs/defences.md")
SLOW = {
    "make demo": "its sentence is checked below",
    "make test": "CI runs it",
    "python benchmarks/": "the tables say when they were made",
}
"""Commands that are left out, by how they begin, and what stands for them."""
SETUP = """
recollect train --dataset synthetic --n 20 --dim 20 --rank 10 --width 1000 --seed 0 --out run
cp run/init.safetensors run/trained.safetensors .
python - <<'PY'
import numpy as np, torch
from safetensors.torch import load_file
for name in ("init", "trained"):
    torch.save(load_file(f"{name}.safetensors"), f"{name}.pt")
np.savez("data.npz", inputs=load_file("run/truth.safetensors")["inputs"].numpy())
PY
"""
CONVNET = """
cat > mymodels.py <<'PY'
from torch import nn
def small_convnet():
    layers = (nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(392, 4))
    return nn.Sequential(*layers)
PY
python - <<'PY'
import torch
from mymodels import small_convnet
torch.manual_seed(0)
model, X, Y = small_convnet(), torch.randn(3, 3, 32, 32), torch.randn(3, 4)
torch.save(model.state_dict(), "init.pt")
steps = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(300):
    steps.zero_grad()
    (model(X) - Y).square().mean().backward()
    steps.step()
torch.save(model.state_dict(), "trained.pt")
PY
"""


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    def commands(self) -> Iterator[str]:
        """The lines of a shell block that are run, without what is slow."""
        for line in self.text.splitlines():
            command = line.split("  #")[0].strip()
            if command and not any(command.startswith(slow) for slow in SLOW):
                yield command


def blocks(page: str) -> list[Block]:
    found = re.findall(r"```(\w*)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    shell = ("recollect ", "make ", "python ")
    return [
        Block(page, language or "shell", text)
        for language, text in found
        if language in ("python", "toml") or (not language and text.startswith(shell))
    ]


def shell(line: str, folder: Path) -> str:
    """Run a line as a reader would. Raises if it fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", line],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{line}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def walk(page: str, folder: Path) -> None:
    """Run every block of a page, in order. Blocks of Python share their names, as on the page."""
    shell(SETUP, folder)
    shutil.copytree(ROOT / "plans", folder / "plans")
    for name in ("synthetic", "cifar10"):
        shutil.copy(next((ROOT / "docs/results").glob(f"{name}*.csv")), folder / f"{name}.csv")
    python = ""
    for block in blocks(page):
        if block.language == "toml":
            (folder / "page.toml").write_text(block.text)
            shell("python -c \"import tomllib; tomllib.load(open('page.toml', 'rb'))\"", folder)
        elif block.language == "python":
            if match := re.match(r"# (\w+\.py)", block.text):
                (folder / match[1]).write_text(block.text)
            python += block.text
            (folder / "page.py").write_text(PYTHON + python)
            shell("python page.py", folder)
        else:
            for command in block.commands():
                if "mymodels" in command:
                    shell(CONVNET, folder)
                print(f"  {command}", flush=True)
                shell(command, folder)


PYTHON = """
from safetensors.torch import load_file
import recollect as rc
victim = rc.load("run/init.safetensors", "run/trained.safetensors")
truth = load_file("run/truth.safetensors")["inputs"]
"""
"""Names that the pages use without defining them."""


def scored(folder: Path, line: str) -> dict[str, Any]:
    return dict(json.loads(shell(f"{line} --json", folder)))


def twenty_points(seed: int, folder: Path) -> str:
    """Runs the README's own lines, with another seed."""
    (made,) = (block for block in blocks("README.md") if "--dataset synthetic --n 20" in block.text)
    train, _, reconstruct, evaluate = made.commands()
    shell(train.replace("--seed 0", f"--seed {seed}"), folder)
    shell(reconstruct, folder)
    score = scored(folder, evaluate)
    assert score["recovered"] == 1.0, score
    assert score["rho"] < 2e-3, score
    return f"ρ {score['rho']:.1e}"


def demonstration(seed: int, folder: Path) -> str:
    shell(f"recollect demo --seed {seed} --out demo", folder)
    truth = "demo/truth.safetensors"
    score = scored(folder, f"recollect evaluate demo --truth {truth}")
    assert score["recovered"] == 1.0, score
    assert score["median"] < 2e-3, score
    return f"median {score['median']:.1e}"


SAYS: tuple[tuple[str, str, Callable[[int, Path], str]], ...] = (
    ("README.md", "This finds all 20 points with their signs, to about four digits", twenty_points),
    ("README.md", "median 0.0001, all 20 below 0.001", demonstration),
)


def says(page: str, sentence: str) -> bool:
    return sentence in " ".join((ROOT / page).read_text().replace("*", "").split())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="0:3")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    for page in PAGES:
        if given.only in page:
            print(page, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                walk(page, Path(folder))
    for page, sentence, check in SAYS:
        if given.only in page:
            assert says(page, sentence), f"{page} no longer says: {sentence}"
            for seed in range(*map(int, given.seeds.split(":"))):
                with tempfile.TemporaryDirectory() as folder:
                    print(f"{sentence}: seed {seed}, {check(seed, Path(folder))}", flush=True)
    for command, instead in SLOW.items():
        print(f"not run: {command} … ({instead})")


if __name__ == "__main__":
    main()
