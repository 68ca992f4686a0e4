"""Victims of which training moved only a part are audited with settings that fit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from recollect import audit
from recollect.auditing.verdict import Verdict
from recollect.cli import main
from recollect.examine.inspection import inspect
from recollect.examine.subspace import feature_rank
from recollect.examine.validate import validate
from recollect.truth.recipe import Recipe
from recollect.victim.victim import Victim, attackable

State = dict[str, torch.Tensor]
PARTS = {
    "last layer frozen": ("0.weight", "0.bias", "2.weight", "2.bias"),
    "first layer frozen": ("2.weight", "2.bias", "4.weight", "4.bias"),
    "last layer alone": ("4.weight", "4.bias"),
    "last weight alone": ("4.weight",),
    "biases alone": ("0.bias", "2.bias", "4.bias"),
    "middle layer alone": ("2.weight", "2.bias"),
    "first weight frozen": ("0.bias", "2.weight", "2.bias", "4.weight", "4.bias"),
}


@cache
def trained(part: str, width: int = 60, n: int = 4) -> tuple[State, State, torch.Tensor]:
    """A few digits of 16 pixels, learnt by plain PyTorch; only `part` of the network is trained."""
    torch.manual_seed(0)
    pixels = torch.tensor(load_digits().data[:n], dtype=torch.float32).reshape(n, 8, 8)
    X = nn.functional.avg_pool2d(pixels[:, None], 2).flatten(1)
    X = (X - X.mean()) / X.std()
    Y = nn.functional.one_hot(torch.arange(n) % 3, 3).float()
    model = nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in PARTS[part])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(600):
        loss = nn.functional.mse_loss(model(X), Y)
        step.zero_grad()
        loss.backward()
        step.step()
    return before, {name: value.clone() for name, value in model.state_dict().items()}, X


def victim_of(part: str) -> Victim:
    before, after, _ = trained(part)
    found = validate(before, after, activation="relu")
    assert found.victim is not None
    assert "did not move" in "".join(one.seen for one in found.findings)
    return found.victim


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("module", [False, True])
def test_what_did_not_move_was_not_trained(part: str, module: bool) -> None:
    before, after, _ = trained(part)
    model = nn.Sequential(
        nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 3)
    )
    victim = Victim.load(before, after, model=model if module else None)
    assert set(victim.network.trained) == set(PARTS[part])
    last = "4.weight" in PARTS[part]
    alone = set(PARTS[part]) <= {"4.weight", "4.bias"}
    kinds = (("last",) if alone else ("last", "all")) if last else ("all",)
    assert attackable(victim.network) == kinds
    looked = inspect(victim)
    assert (looked.spectrum is not None) == ("0.weight" in PARTS[part])
    assert [one.parameters for one in looked.counting] == list(kinds)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_moved_is_audited(
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    before, after, _ = trained(part)
    torch.save(before, tmp_path / "init.pt")
    torch.save(after, tmp_path / "trained.pt")
    files = [str(tmp_path / "init.pt"), str(tmp_path / "trained.pt")]
    options = ["--n", "4", "--budget", "2s", "--activation", "relu", "--device", "cpu", "--json"]
    assert main(["audit", *files, "--out", str(tmp_path / "out"), *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    tried = {one["setting"].partition(",")[0] for one in answer["attempts"]}
    assert tried <= {"last layer", "all layers"}
    assert ("last layer" in tried) == ("4.weight" in PARTS[part])
    assert any(one["n"] is not None for one in answer["attempts"])
    assert (tmp_path / "out" / "report.html").exists()


def test_a_linear_probe_is_searched_in_full_space_and_exposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The features are the same at both ends, so this is a network of random features."""
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    data = Recipe(dataset="synthetic", n=3, dim=5, rank=4, width=9).data()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 400), nn.ReLU(), nn.Linear(400, 3)).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    H = torch.relu(model[0](data.inputs)).detach()
    H1 = torch.cat([H, H.new_ones(len(H), 1)], dim=1)
    wanted = torch.eye(3, dtype=H.dtype) - model[2](H).detach()
    change = torch.linalg.pinv(H1) @ wanted
    after = {**before, "2.weight": before["2.weight"] + change[:-1].T}
    after["2.bias"] = before["2.bias"] + change[-1]
    done = audit(before, after, truth=data.inputs, activation="relu", n=3, budget="20s")
    assert done.verdict is Verdict.EXPOSED
    assert done.score is not None
    assert done.score.recovered == 1
    assert {attempt.setting.attack.parameters for attempt in done.attempts} == {"last"}


def test_the_number_of_points_shows_in_the_first_layer_that_moved() -> None:
    assert feature_rank(victim_of("middle layer alone")) == 4
    assert feature_rank(victim_of("last layer alone")) is None
    assert feature_rank(victim_of("biases alone")) is None


def test_a_change_in_nothing_that_is_trained_is_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {"V": torch.randn(30, 4), "theta": torch.randn(1, 30)}
    torch.save(before, tmp_path / "a.pt")
    torch.save({**before, "V": before["V"] + 1}, tmp_path / "b.pt")
    files = [str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]
    assert main(["audit", *files, "--out", str(tmp_path / "out"), "--json"]) == 2
    assert "expected training to have moved theta" in capsys.readouterr().out
    assert (tmp_path / "out" / "report.html").exists()
