"""Modules whose first or last layer is no map of the whole input end in a finding and a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from recollect import Exact, Reconstruction, Status
from recollect.auditing.attempt import Attempt, Outcome, Setting
from recollect.auditing.conclusion import conclude
from recollect.auditing.result import Audit
from recollect.auditing.run import hindrance
from recollect.auditing.verdict import Verdict, judge_by_truth
from recollect.cli import main
from recollect.errors import VictimError
from recollect.examine.history import History
from recollect.examine.inspection import inspect
from recollect.examine.validate import validate
from recollect.shapes import Tensor
from recollect.victim.module import ModuleNetwork

MODELS = '''
import torch
from torch import nn

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.block(self.embed(x)).mean(1))

class Tokens(nn.Module):
    """The last layer too is applied to each token."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 2)
    def forward(self, x):
        return self.b(torch.relu(self.a(torch.relu(self.a(x.flatten(1))))))

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        h = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.table(x.long()).mean((1, 2)))

class Convolution(nn.Module):
    """Applied to two halves of the input."""
    def __init__(self):
        super().__init__()
        self.c, self.head = nn.Conv1d(4, 3, 3, padding=1), nn.Linear(24, 2)
    def forward(self, x):
        return self.head((torch.relu(self.c(x)) + torch.relu(self.c(x.flip(2)))).flatten(1))

class Picky(nn.Module):
    """Raises errors of every kind that is not expected."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 8), nn.Linear(8, 2)
    def forward(self, x):
        if len(x) == 3:
            raise KeyError("three")
        return self.b(torch.relu(self.a(x.flatten(1))))

class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x.flatten(1)))))

class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(32, 8), nn.Dropout(0.3), nn.Linear(8, 2)
    def forward(self, x):
        return self.b(self.drop(torch.relu(self.a(x.flatten(1)))))

class PerToken(nn.Module):
    """Its first layer has a rule, and is applied to each token."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)).mean(1))

class Quits(nn.Module):
    """Ends the process once it is attacked."""
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 8), nn.Linear(8, 2)
    def forward(self, x):
        if len(x) == 3:
            raise SystemExit(0)
        return self.b(torch.relu(self.a(x.flatten(1))))

class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(32, 8), nn.Linear(8, 2)
    def forward(self, x, y):
        return self.b(torch.relu(self.a(x)))
'''
STOPPED = ("Tokens", "Words", "TwoInputs")


def models(folder: Path) -> dict[str, type[nn.Module]]:
    (folder / "zoo.py").write_text(MODELS)
    made: dict[str, type[nn.Module]] = {"__name__": "zoo"}  # type: ignore[dict-item]
    exec(MODELS, made)
    names = [*STOPPED, "Transformer", "Twice", "Cell", "Recurrent", "Convolution", "Picky", "Quits"]
    return {name: made[name] for name in names}


@pytest.mark.parametrize(
    "name",
    [*STOPPED, "Transformer", "Twice", "Cell", "Recurrent", "Convolution", "Picky", "Quits"],
)
def test_a_model_that_does_not_fit_ends_in_a_finding(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "zoo", raising=False)
    torch.manual_seed(0)
    before = models(tmp_path)[name]().state_dict()
    after = {key: value + 0.01 * torch.randn_like(value) for key, value in before.items()}
    torch.save(before, "a.pt")
    torch.save(after, "b.pt")
    budget = "30s" if name == "Picky" else "2s"  # its attacks end at once
    options = ["--model", f"zoo:{name}", "--input-shape", "4,8", "--n", "3", "--budget", budget]
    code = main(["audit", "a.pt", "b.pt", "--out", "out", *options, "--device", "cpu", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert code == (2 if name in (*STOPPED, "Quits") else 0)
    seen = " ".join(one["seen"] for one in answer["findings"])
    assert answer["verdict"] in ("cannot be judged", "not exposed within budget", "partly exposed")
    if name not in (*STOPPED, "Picky", "Quits"):
        assert "first layer is no linear map of the whole input" in seen
    if name == "Picky":
        assert "KeyError" in json.dumps(answer["attempts"])
        assert answer["reason"] == "layer"
    assert (tmp_path / "out" / "report.html").exists()


FORWARD = """
from torch import nn
class model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
    def forward(self, x):
        raise SystemExit(0)
"""


@pytest.mark.parametrize(
    "code",
    ["import sys; sys.exit(0)", "def model():\n    raise SystemExit", "model = exit", FORWARD],
)
def test_code_that_ends_the_process_does_not_pass_the_gate(
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "leaves", raising=False)
    (tmp_path / "leaves.py").write_text(code)
    plain = nn.ModuleDict({"a": nn.Linear(3, 4), "b": nn.Linear(4, 2)}).state_dict()
    torch.save(plain, "a.pt")
    torch.save({name: value + 0.01 for name, value in plain.items()}, "b.pt")
    options = ["--model", "leaves:model", "--input-shape", "3", "--out", "out"]
    assert main(["audit", "a.pt", "b.pt", *options]) == 2
    assert "SystemExit" in capsys.readouterr().err
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["verdict"]


def test_reconstruct_names_what_a_model_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "zoo", raising=False)
    before = models(tmp_path)["Picky"]().state_dict()
    torch.save(before, "a.pt")
    torch.save({key: value + 0.01 for key, value in before.items()}, "b.pt")
    options = ["--model", "zoo:Picky", "--input-shape", "4,8", "--n", "3", "--device", "cpu"]
    assert main(["reconstruct", "a.pt", "b.pt", "--out", "out", *options]) == 2
    said = capsys.readouterr().err
    assert "KeyError" in said
    assert "zoo:Picky" in said
    assert len(said.strip().splitlines()) == 1


def test_only_a_layer_that_meets_the_whole_input_once_is_the_first(tmp_path: Path) -> None:
    zoo = models(tmp_path)
    for name in ("Transformer", "Twice", "Cell", "Recurrent", "Convolution"):
        module = zoo[name]().double()
        assert ModuleNetwork(module, module.state_dict(), (4, 8)).first is None, name
    plain = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    first = ModuleNetwork(plain, plain.state_dict(), (4, 8)).first
    assert first is not None
    assert first.weight == "1.weight"
    module = zoo["Tokens"]().double()
    with pytest.raises(VictimError, match="expected a module that"):
        ModuleNetwork(module, module.state_dict(), (4, 8))


def test_attention_can_be_differentiated_in_every_way(tmp_path: Path) -> None:
    """The Jacobian in forward mode agrees with small differences; fused kernels have none."""
    module = models(tmp_path)["Transformer"]().double()
    theta = {name: value.clone() for name, value in module.state_dict().items()}
    network = ModuleNetwork(module, theta, (4, 8))
    X = torch.randn(2, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    J = network.jacobian(theta, X)
    v = torch.randn(32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ahead, behind = (network.features(theta, X + sign * 1e-6 * v) for sign in (1, -1))
    assert torch.allclose((J @ v).T, (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("Batched", "norm"),
        ("Dropped", "drop"),
        ("Twice", "a.weight"),
        ("PerToken", "a.weight"),
        ("Transformer", "block.self_attn"),
        ("Recurrent", "layer"),
        ("Cell", "cell"),
    ],
)
def test_a_layer_without_a_rule_is_named_and_is_no_all_clear(name: str, layer: str) -> None:
    made: dict[str, type[nn.Module]] = {"__name__": "zoo"}  # type: ignore[dict-item]
    exec(MODELS, made)
    found = validate(*_trained(made[name]), model=made[name](), input_shape=(4, 8))
    assert found.victim is not None
    hindering = [one for one in found.findings if one.hinders == "layer"]
    assert layer in " ".join(one.seen for one in hindering)
    past = History(0.0, found.findings)
    poor = Reconstruction(
        inputs=torch.randn(3, 32).double(),
        loss=0.5,
        status=Status.STATIONARY,
        confidence=torch.zeros(3).double(),
    )
    best = Attempt(Setting("last layer", found.victim, Exact(), 3, 0), poor, 1.0, "done")
    verdict, reason = conclude(best, [best], [], hindrance=hindrance(past))
    assert (verdict, reason) == (Verdict.UNKNOWN, "layer")
    outcome = Outcome(verdict, past, inspect(found.victim), (best,), best, (), 1.0, reason=reason)
    done = Audit(verdict, found.findings, outcome, reason=reason)
    assert layer in done.answer
    assert judge_by_truth(3, 3, 0.0, verdict) is Verdict.EXPOSED


def test_a_plain_module_and_a_convolution_are_not_taken_for_layers_without_a_rule() -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 2))
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 2))
    for module, shape in ((plain, (4, 8)), (convolution, (1, 4, 8))):
        found = validate(*_trained(lambda module=module: module), model=module, input_shape=shape)
        assert found.victim is not None
        assert [one.code for one in found.findings if one.hinders] == []


def _trained(make: Callable[[], nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The state of a module, and the same a little further on."""
    torch.manual_seed(0)
    before = {name: value.clone() for name, value in make().state_dict().items()}
    after = {
        name: value + 0.01 * torch.randn_like(value) if value.is_floating_point() else value + 1
        for name, value in before.items()
    }
    return before, after
