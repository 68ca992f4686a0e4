"""Every reason at once, each with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from recollect.examine.findings import Severity
from recollect.examine.validate import Validation, validate
from recollect.victim.read import checkpoint

State = dict[str, torch.Tensor]


def state(**changes: torch.Tensor | None) -> State:
    generator = torch.Generator().manual_seed(0)
    made: dict[str, torch.Tensor | None] = {
        "0.weight": torch.randn(30, 8, generator=generator),
        "0.bias": torch.randn(30, generator=generator),
        "2.weight": torch.randn(3, 30, generator=generator),
        "2.bias": torch.randn(3, generator=generator),
    }
    made |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def moved(start: State) -> State:
    return {
        name: value + 0.01 if value.is_floating_point() else value for name, value in start.items()
    }


def checked(
    folder: Path, before: State | None, after: State, model: nn.Module | None = None
) -> Validation:
    if before is not None:
        torch.save(before, folder / "init.pt")
    torch.save(after, folder / "trained.pt")
    return validate(
        None if before is None else folder / "init.pt", folder / "trained.pt", model=model
    )


def test_a_plain_network_has_nothing_against_it(tmp_path: Path) -> None:
    found = checked(tmp_path, state(), moved(state()))
    assert found.findings == ()
    assert found.victim is not None
    assert found.victim.network.d == 8


def test_all_reasons_come_at_once(tmp_path: Path) -> None:
    before = state(lora_A__weight=torch.ones(2, 8), extra=torch.ones(3))
    after = {
        **moved(state()),
        "2.weight": torch.full((3, 31), torch.nan),
        "0.bias": torch.ones(30, dtype=torch.int8),
    }
    found = checked(tmp_path, before, after)
    assert found.victim is None
    text = "\n".join(map(str, found.findings))
    for reason in (
        "LoRA",
        "NaN",
        "quantised",
        "extra only before training",
        "[30] before and [30] int8 after",
    ):
        assert reason in text
    assert all(finding.remedy and finding.consequence for finding in found.findings)


def test_without_a_start(tmp_path: Path) -> None:
    found = checked(tmp_path, None, state())
    assert found.victim is None
    assert [finding.severity for finding in found.findings] == [Severity.STOPS]
    assert "θ0" in found.findings[0].consequence


def test_two_missing_files_are_two_findings(tmp_path: Path) -> None:
    found = validate(tmp_path / "a.pt", tmp_path / "b.pt")
    assert len(found.findings) == 2
    assert "a.pt" in found.findings[0].seen
    assert "check the path" in found.findings[0].remedy


def test_the_same_weights_twice(tmp_path: Path) -> None:
    found = checked(tmp_path, state(), state())
    assert found.victim is None
    assert "the same weights" in found.findings[0].seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_runs_with_a_caveat(tmp_path: Path, dtype: torch.dtype) -> None:
    before, after = state(), moved(state())
    save_file(
        {name: value.to(dtype) for name, value in before.items()}, tmp_path / "init.safetensors"
    )
    save_file(
        {name: value.to(dtype) for name, value in after.items()}, tmp_path / "trained.safetensors"
    )
    found = validate(tmp_path / "init.safetensors", tmp_path / "trained.safetensors")
    assert found.victim is not None
    assert str(dtype).removeprefix("torch.") in found.findings[0].seen
    assert all(finding.severity is Severity.LIMITS for finding in found.findings)


def test_batch_norm_and_dropout_run_with_caveats(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Dropout(0.5), nn.Linear(30, 3)
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = checked(tmp_path, before, moved(before), model)
    assert found.victim is not None
    seen = [finding.seen for finding in found.findings]
    assert seen[0] == "there are BatchNorm layers (1)"
    assert "there is dropout (3)" in seen
    assert sum("BatchNorm" in one for one in seen) == 1
    assert any("no rule here (1.weight, 1.bias)" in one for one in seen)


def test_a_table_of_words_stops_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(8, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = checked(tmp_path, before, moved(before), model)
    assert found.victim is None
    assert "table (0)" in found.findings[0].seen


def test_an_optimiser_beside_the_weights(tmp_path: Path) -> None:
    before = state(exp_avg=torch.ones(3, 3, 3))
    found = checked(tmp_path, before, moved(before))
    assert any("running averages" in finding.seen for finding in found.findings)


def trained_by(optimiser: torch.optim.Optimizer, model: nn.Module) -> State:
    model(torch.ones(2, 8)).sum().backward()
    optimiser.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "Adamax", "RMSprop", "momentum", "SGD"])
def test_an_optimiser_in_the_same_file(tmp_path: Path, name: str) -> None:
    """Momentum stays a sum of gradients, so that it is none of a person's worries."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 3))
    made = {
        "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "SGD": lambda p: torch.optim.SGD(p, 0.1),
    }
    optimiser = made.get(name, getattr(torch.optim, name, None))(model.parameters())
    torch.save({"model": model.state_dict()}, tmp_path / "init.pt")
    after = trained_by(optimiser, model)
    torch.save(
        {"epoch": 1, "model": after, "states": [optimiser.state_dict()]}, tmp_path / "trained.pt"
    )
    found = validate(tmp_path / "init.pt", tmp_path / "trained.pt")
    assert found.victim is not None
    seen = [finding.seen for finding in found.findings]
    assert seen == (
        []
        if name in ("momentum", "SGD")
        else ["an optimiser's running averages lie beside the weights"]
    )


@pytest.mark.filterwarnings("ignore")  # torch calls it deprecated
def test_a_quantised_model_is_called_that(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 3))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    found = checked(tmp_path, model.state_dict(), quantised.state_dict())
    assert found.victim is None
    assert found.findings[0].seen == "the weights are quantised"
    assert not any(finding.severity is Severity.UNREADABLE for finding in found.findings)


def test_counters_and_masks_are_not_called_quantised(tmp_path: Path) -> None:
    before = state(
        n_averaged=torch.tensor(0), position_ids=torch.arange(5)[None], mask=torch.ones(3) > 0
    )
    found = checked(tmp_path, before, {**moved(before), "n_averaged": torch.tensor(7)})
    assert found.findings == ()
    assert found.victim is not None
    assert found.victim.network.depth == 2
    other = {**moved(before), "n_averaged": torch.tensor(7.0)}
    assert "n_averaged [] int64 before and [] after" in str(
        checked(tmp_path, before, other).findings[0]
    )


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = checkpoint.open_torch_file
    monkeypatch.setattr(
        checkpoint, "open_torch_file", lambda path: opened.append(path) or real(path)
    )
    assert checked(tmp_path, state(), moved(state())).victim is not None
    assert opened == [tmp_path / "init.pt", tmp_path / "trained.pt"]


def test_names_that_would_write_to_a_terminal_are_not_repeated(tmp_path: Path) -> None:
    name = "\x1b[2Jweight"
    found = checked(tmp_path, {**state(), name: torch.ones(2)}, moved(state()))
    assert found.victim is None
    assert all(finding_text.isprintable() for finding_text in map(str, found.findings))
