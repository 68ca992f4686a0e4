"""Checkpoints in the wrong order are noticed, and no ordinary training is taken for that."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import recollect as rc
from recollect.cli import main
from recollect.examine.exchanged import exchanged, fresh
from recollect.examine.validate import Validation, validate
from recollect.truth.files import write_training
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim

State = dict[str, torch.Tensor]
INITS = ("torch", "xavier", "zero biases", "normal")
SEEN = ("torch", "xavier", "zero biases")


def drawn(init: str, width: int, depth: int) -> nn.Sequential:
    sizes = [64, *[width] * (depth - 1), 10]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b)
        if init == "xavier":
            nn.init.xavier_uniform_(layer.weight)
        if init in ("normal", "zero biases"):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if init == "zero biases":
            nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def state(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(model: nn.Module, seed: int, steps: int, **options: Any) -> State:
    digits = load_digits()
    chosen = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:20]
    X = torch.tensor(digits.data, dtype=torch.float32)[chosen] / 4 - 1
    Y = nn.functional.one_hot(torch.tensor(digits.target)[chosen], 10).float()
    step = torch.optim.SGD(model.parameters(), lr=0.02, **options)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(X), Y)
        step.zero_grad()
        loss.backward()
        step.step()
    return state(model)


@cache
def history(init: str, seed: int, width: int, depth: int) -> tuple[State, State, State, State]:
    """Fresh, after one step, trained, and then fine-tuned on other data with weight decay."""
    torch.manual_seed(seed)
    model = drawn(init, width, depth)
    start, first = state(model), train(model, seed, 1)
    trained = train(model, seed, 60)
    return start, first, trained, train(model, seed + 1000, 20, weight_decay=1e-2)


def runs() -> Iterator[tuple[str, tuple[State, State, State, State]]]:
    for init in INITS:
        for seed in range(3):
            for width, depth in ((100, 2), (300, 2), (150, 3)):
                yield init, history(init, seed, width, depth)


def noticed(before: State, after: State) -> bool:
    return exchanged(Victim(infer_network(after, "relu"), before, after))


def test_no_ordinary_training_is_taken_for_an_exchange() -> None:
    for init, (start, first, trained, tuned) in runs():
        assert not noticed(start, first), init
        assert not noticed(start, trained), init
        assert not noticed(trained, tuned), init
        assert not noticed(first, trained), init


def test_an_exchange_is_noticed_even_after_one_step() -> None:
    for init, (start, first, trained, _) in runs():
        if init in SEEN:
            assert noticed(first, start), init
            assert noticed(trained, start), init


def test_a_new_head_on_a_trained_network_is_no_exchange() -> None:
    for init in INITS:
        torch.manual_seed(0)
        model = drawn(init, 150, 2)
        train(model, 0, 60)
        model[-1] = nn.Linear(150, 10)
        before = state(model)
        assert not noticed(before, train(model, 1, 20)), init


def test_what_is_fresh() -> None:
    torch.manual_seed(0)
    uniform, normal = nn.Linear(64, 300).weight.detach(), torch.randn(300, 64)
    theta = {"0.weight": uniform, "0.bias": torch.zeros(300)}
    assert fresh("0.weight", theta)
    assert fresh("0.bias", theta)
    moved = uniform.clone()
    moved[3, 4] = 0.126  # the bound is 1/8
    assert fresh("0.weight", {"0.weight": moved}) is False
    assert fresh("0.weight", {"0.weight": normal}) is None
    assert fresh("0.weight", {"0.weight": uniform[:3]}) is None


def checked(folder: Path, before: Any, after: Any) -> Validation:
    torch.save(before, folder / "init.pt")
    torch.save(after, folder / "trained.pt")
    return validate(folder / "init.pt", folder / "trained.pt")


def says(found: Validation) -> bool:
    return any("exchanged" in one.seen for one in found.findings)


def test_the_counts_in_the_files(tmp_path: Path) -> None:
    _, _, a, b = history("normal", 0, 100, 2)
    stepped = {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1}]}
    new = {"state": {}, "param_groups": [{"lr": 0.1}]}

    def of(weights: State, optimiser: Any = None, **counts: int) -> Any:
        return {"model": weights, **({} if optimiser is None else {"opt": optimiser}), **counts}

    assert says(checked(tmp_path, of(a, global_step=500), of(b, global_step=0)))
    assert says(checked(tmp_path, of(a, stepped, epoch=9), of(b, new, epoch=0)))
    for before, after in (
        (of(a, global_step=0), of(b, global_step=500)),
        (of(a, global_step=500), of(b, global_step=20)),  # fine-tuning counts again
        (of(a, epoch=9), of(b, epoch=0)),  # which may be the first epoch
        (of(a, stepped, epoch=9), of(b, stepped, epoch=0)),
        (of(a, new, epoch=0), of(b, stepped, epoch=9)),
        (of(a, global_step=500), of(b)),
        (of(a, global_step=True), of(b, global_step=False)),
    ):
        assert not says(checked(tmp_path, before, after)), (list(before), list(after))


def test_the_steps_that_train_wrote(tmp_path: Path) -> None:
    """Also for weights from a normal distribution, which tell nothing by themselves."""
    made = rc.train(dataset="synthetic", n=3, dim=6, rank=3, width=40, seed=0)
    write_training(tmp_path, made)
    init, trained = tmp_path / "init.safetensors", tmp_path / "trained.safetensors"
    assert not says(validate(init, trained))
    assert says(validate(trained, init))


def test_batches_that_were_counted() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    before = state(model)
    model(torch.randn(9, 4))
    after = {
        name: value + 0.1 if value.is_floating_point() else value
        for name, value in state(model).items()
    }
    assert exchanged(Victim(model, after, before))
    assert not exchanged(Victim(model, before, after))


def test_an_exchange_is_a_finding_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    start, _, trained, _ = history("torch", 0, 100, 2)
    torch.save(start, tmp_path / "init.pt")
    torch.save(trained, tmp_path / "trained.pt")
    files = [str(tmp_path / "init.pt"), str(tmp_path / "trained.pt")]
    options = ["--n", "20", "--budget", "1s", "--activation", "relu", "--device", "cpu", "--json"]
    found = []
    for k, order in enumerate((files, files[::-1])):
        assert main(["audit", *order, "--out", str(tmp_path / str(k)), *options]) == 0
        answer = json.loads(capsys.readouterr().out)
        found.append([one for one in answer["findings"] if "exchanged" in one["seen"]])
    assert found[0] == []
    assert found[1][0]["severity"] == "limits"
