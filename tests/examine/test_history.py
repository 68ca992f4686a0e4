"""What Δθ tells of how it came about."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from torch import nn

from recollect.examine.history import history, undecayed, weight_decay
from recollect.examine.optimiser import evenness
from recollect.examine.subspace import spectrum
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim

State = dict[str, torch.Tensor]


@cache
def trained(
    optimiser: str = "SGD",
    lr: float = 0.05,
    decay: float = 0.0,
    momentum: float = 0.0,
    noise: float = 0.0,
    batch: int = 20,
    seed: int = 0,
) -> tuple[State, State, int]:
    """Twenty digits learnt by plain PyTorch."""
    torch.manual_seed(seed)
    digits = load_digits()
    X = torch.tensor(digits.data[:20], dtype=torch.float32)
    X = (X - X.mean()) / X.std()
    Y = nn.functional.one_hot(torch.tensor(digits.target[:20]), 10).float()
    model = nn.Sequential(nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options: dict[str, Any] = {"momentum": momentum} if optimiser == "SGD" else {}
    step = getattr(torch.optim, optimiser)(model.parameters(), lr=lr, weight_decay=decay, **options)
    steps = 0
    while steps < 600:
        steps += 1
        chosen = torch.randperm(20)[:batch]
        loss = nn.functional.mse_loss(model(X[chosen]), Y[chosen])
        if loss < 1e-5:
            break
        step.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad += noise * torch.randn_like(parameter)
        step.step()
    return before, {name: value.clone() for name, value in model.state_dict().items()}, steps


def victim_of(before: State, after: State) -> Victim:
    return Victim(infer_network(after), before, after)


def said(before: State, after: State) -> str:
    return "; ".join(finding.seen for finding in history(victim_of(before, after)).findings)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "lr": 0.01}, {"batch": 5}, {"seed": 3}])
def test_gradient_descent_leaves_nothing_to_say(options: dict[str, Any]) -> None:
    before, after, _ = trained(**options)
    assert said(before, after) == ""


@pytest.mark.parametrize("decay", [5e-2, 1e-2, 1e-3, 1e-5])
def test_weight_decay_is_measured_and_undone(decay: float) -> None:
    before, after, steps = trained(decay=decay)
    victim = victim_of(before, after)
    total = 1 - (1 - 0.05 * decay) ** (steps + (steps == 599))
    assert weight_decay(victim) == pytest.approx(total, rel=2e-3)
    found = history(victim)
    assert any("weight decay" in finding.seen for finding in found.findings)
    assert found.biased is (total > 0.5)
    plain = undecayed(victim, found.decay)
    assert spectrum(plain).rank == 20
    assert spectrum(plain).gap > 20


def test_weights_that_start_at_zero_have_nothing_to_decay() -> None:
    before, after, _ = trained()
    victim = victim_of({name: torch.zeros_like(value) for name, value in before.items()}, after)
    assert weight_decay(victim) == 0
    assert history(victim).decay == 0


@pytest.mark.parametrize("lr", [1e-3, 1e-4])
def test_adam_is_seen(lr: float) -> None:
    assert "alike in size" in said(*trained("Adam", lr=lr)[:2])


@pytest.mark.parametrize("noise", [1e-4, 1e-2])
def test_noise_is_measured(noise: float) -> None:
    before, after, steps = trained(noise=noise)
    words = said(before, after)
    assert "holds noise of" in words
    sigma = float(words.split("holds noise of ")[1].split()[0])
    assert sigma == pytest.approx(0.05 * noise * (steps + 1) ** 0.5, rel=0.2)


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.float16, "float16"), (torch.bfloat16, "bfloat16")]
)
def test_weights_that_were_rounded_and_stored_as_floats(dtype: torch.dtype, name: str) -> None:
    before, after, _ = trained()
    assert f"grid: {name}" in said(
        before, {key: value.to(dtype).float() for key, value in after.items()}
    )


@pytest.mark.parametrize("by_row", [False, True])
def test_weights_on_a_few_levels(by_row: bool) -> None:
    before, after, _ = trained()

    def quantised(value: torch.Tensor) -> torch.Tensor:
        scale = (value.abs().amax(-1, keepdim=True) if by_row else value.abs().max()) / 127
        return (value / scale).round() * scale

    wide = {
        name: value.repeat(1, 20) if name == "0.weight" else value for name, value in after.items()
    }
    start = {
        name: value.repeat(1, 20) if name == "0.weight" else value for name, value in before.items()
    }
    rounded = {
        name: quantised(value) if value.dim() == 2 else value for name, value in wide.items()
    }
    if by_row:  # of the last layer no row is long enough to tell
        rounded["2.weight"] = wide["2.weight"][:, :100]
        start["2.weight"] = start["2.weight"][:, :100]
        for state in (rounded, start):
            state["0.weight"], state["0.bias"] = state["0.weight"][:100], state["0.bias"][:100]
    assert "values" in said(start, rounded)


def test_the_start_of_another_run() -> None:
    _, after, _ = trained()
    other, _, _ = trained(seed=3)
    assert "little in common" in said(other, after)


def test_without_a_start_there_is_nothing_to_read() -> None:
    _, after, _ = trained()
    assert history(Victim(infer_network(after), None, after)).findings == ()


def tabular(optimiser: str, seed: int = 0, **options: Any) -> tuple[State, State]:
    """Twenty rows of the standardised wine data, learnt by a small network without biases."""
    torch.manual_seed(seed)
    wine = load_wine()
    X = torch.tensor(wine.data, dtype=torch.float32)
    chosen = torch.randperm(len(X))[:20]
    X = ((X - X.mean(0)) / X.std(0))[chosen]
    Y = nn.functional.one_hot(torch.tensor(wine.target), 3).float()[chosen]
    model = nn.Sequential(nn.Linear(13, 60, bias=False), nn.ReLU(), nn.Linear(60, 3, bias=False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = getattr(torch.optim, optimiser)(model.parameters(), **options)
    for _ in range(300):
        step.zero_grad()
        nn.functional.mse_loss(model(X), Y).backward()
        step.step()
    return before, {name: value.clone() for name, value in model.state_dict().items()}


def test_momentum_on_a_table_is_not_taken_for_adam() -> None:
    before, after = tabular("SGD", seed=2, lr=0.05, momentum=0.9)
    e, q = evenness(victim_of(before, after)) or (0.0, 0.0)
    assert e > 0.58  # which alone is as much as Adam leaves elsewhere
    assert q is not None
    assert q < 0.4
    found = history(victim_of(before, after)).findings
    assert {finding.code for finding in found} == {"unbalanced"}


@pytest.mark.parametrize("optimiser", ["Adam", "RMSprop"])
def test_an_optimiser_that_rescales_entries_is_suspected_on_a_table(optimiser: str) -> None:
    findings = history(victim_of(*tabular(optimiser, lr=3e-3))).findings
    assert ["may have rescaled" in finding.consequence for finding in findings] == [True]
    assert "--optimizer sgd" in findings[0].remedy


def test_what_the_user_says_of_the_optimiser_decides() -> None:
    victim = victim_of(*tabular("Adam", lr=3e-3))
    assert not history(victim).fits
    told = history(victim, optimizer="sgd").findings
    assert [finding.code for finding in told] == ["unbalanced"]
    plain = victim_of(*trained()[:2])
    assert history(plain).fits
    assert not history(plain, optimizer="adamw").fits
    assert "adamw, as you say" in history(plain, optimizer="adamw").findings[0].seen
