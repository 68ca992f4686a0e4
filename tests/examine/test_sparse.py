"""Changes that leave out entries which training would have changed, and real ones that do not."""

from __future__ import annotations

import itertools

import pytest
import torch
from plain import D, copied, network, trained

from recollect import Exact, reconstruct
from recollect.auditing.run import run_audit
from recollect.auditing.verdict import Verdict, called
from recollect.examine.history import history
from recollect.examine.sparse import zeros_between
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim


def kept(victim: Victim, share: float, seed: int = 0) -> Victim:
    """Only a random share of the entries of Δθ is kept."""
    assert victim.theta_0 is not None
    generator = torch.Generator().manual_seed(seed)
    after = {
        name: torch.where(
            torch.rand(value.shape, generator=generator) < share, value, victim.theta_0[name]
        )
        for name, value in victim.theta_f.items()
    }
    return Victim(victim.network, victim.theta_0, after)


def edited(seed: int, bias: bool = False) -> Victim:
    """Nothing was trained: one weight of one unit was changed in each of two layers."""
    before = copied(network(seed, 2, 3, bias))
    after = {name: value.clone() for name, value in before.items()}
    after["0.weight"][3, 5] += 0.3
    after["2.weight"][0, 3] += 0.2
    return Victim(infer_network(after), before, after)


@pytest.mark.parametrize("seed", range(3))
def test_two_edited_entries_are_not_called_training_data(seed: int) -> None:
    found = reconstruct(edited(seed), 1, Exact(), device="cpu")
    assert found.loss < 1e-6  # the difference of the two ends explains all of it
    assert not called(found).any()


@pytest.mark.parametrize("bias", [False, True])
def test_two_edited_entries_cannot_be_judged(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    victim = edited(0, bias)
    assert "of the 100 units of the first layer only 1 changed" in history(victim).findings[0].seen
    done = run_audit(victim, 1, budget=5.0, device="cpu")
    assert done.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("n", "bias", "seed"), [(1, False, 0), (1, True, 0), (2, False, 0), (2, True, 0)]
)
def test_models_of_one_or_two_records_are_still_found(n: int, bias: bool, seed: int) -> None:
    victim, X = trained(n, bias=bias, seed=seed)
    # Steps of usual size overshoot where there is one record.
    assert {finding.code for finding in history(victim).findings} <= {"unbalanced"}
    found = reconstruct(victim, n, Exact(), device="cpu")
    assert called(found).all()
    assert float(torch.cdist(found.inputs, X.double()).min(1).values.max()) < 0.1 * D**0.5


@pytest.mark.parametrize(("depth", "bias"), list(itertools.product((2, 3), (False, True))))
def test_a_change_of_which_a_tenth_was_kept_does_not_fit(depth: int, bias: bool) -> None:
    victim, _ = trained(11, depth=depth, bias=bias)
    past = history(kept(victim, 0.1))
    assert "are exactly as they were" in past.findings[-1].seen
    assert not past.fits
    assert past.withhold


@pytest.mark.parametrize(
    ("n", "depth", "outputs", "bias"),
    list(itertools.product((1, 2, 5, 20), (2, 3), (1, 3), (False, True))),
)
def test_real_changes_have_no_zeros_in_between(
    n: int, depth: int, outputs: int, bias: bool
) -> None:
    victim, _ = trained(n, depth=depth, outputs=outputs, bias=bias, steps=5)
    assert zeros_between(victim) < 0.01
    assert not history(victim).sparse


def test_changes_lost_to_rounding_are_not_taken_for_sparse() -> None:
    """A step so small that most weights keep the number that float32 rounds them to."""
    victim, _ = trained(5, steps=1)
    assert victim.theta_0 is not None
    small = {
        name: victim.theta_0[name] + 1e-7 * (value - victim.theta_0[name])
        for name, value in victim.theta_f.items()
    }
    rounded = Victim(victim.network, victim.theta_0, small)
    change = rounded.delta(["2.weight"])["2.weight"]
    assert float((change == 0).double().mean()) > 0.2
    assert zeros_between(rounded) == 0
