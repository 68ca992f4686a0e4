"""What an audit concludes from its attacks. The attacks are prepared results, so that each case is
exact and takes no time."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect import Exact, Reconstruction, Status, Withheld, audit
from recollect.auditing.attempt import Attempt, NullRun, Setting
from recollect.auditing.conclusion import conclude
from recollect.auditing.forecast import Forecast
from recollect.auditing.nulls import shuffled
from recollect.auditing.ranking import most_explaining
from recollect.auditing.run import run_audit
from recollect.auditing.verdict import (
    CALLED,
    RECOGNISABLE,
    UNCONFIRMED,
    Verdict,
    judge_by_truth,
    levels,
)
from recollect.cli import main
from recollect.errors import VictimError
from recollect.examine.findings import Finding, Severity
from recollect.examine.history import SPARSE, History
from recollect.report.audit import _mark
from recollect.report.html import Pair
from recollect.shapes import Tensor
from recollect.truth.recipe import Recipe
from recollect.victim.victim import Victim

CPU = torch.device("cpu")
N = 6


@cache
def easy() -> tuple[Victim, Tensor]:
    recipe = Recipe(dataset="digits", n=N, width=100, dtype="float64")
    data = recipe.data()
    return recipe.make(data, CPU).victim, data.inputs


def found(
    sure: float | list[float],
    *,
    loss: float = 1e-3,
    status: Status = Status.STATIONARY,
    points: int = 0,
    n: int = N,
    **more: Any,
) -> Reconstruction:
    """A result with these confidences. Results with the same `points` have the same points."""
    confidence = torch.as_tensor(sure, dtype=torch.float64).expand(n).clone()
    generator = torch.Generator().manual_seed(points)
    inputs = torch.randn(n, 64, generator=generator, dtype=torch.float64)
    return Reconstruction(
        inputs=inputs,
        loss=loss,
        status=status,
        confidence=confidence,
        equations_effective=1000,
        coordinates=30,
        rank=N,
        **more,
    )


def attempt(result: Reconstruction | None, *, seed: int = 0, **more: Any) -> Attempt:
    setting = Setting("last layer", easy()[0], Exact(), N, seed)
    return Attempt(setting, result, 1.0, "done", **more)


class Prepared:
    """An attack that returns what it is told to, and remembers what it was asked for."""

    def __init__(self, answer: Callable[[Setting], Reconstruction]) -> None:
        self.answer = answer
        self.asked: list[Setting] = []
        self.deadlines: list[float] = []

    def __call__(
        self, victim: Victim, n: int | None, attack: Exact, *, seed: int, **more: Any
    ) -> Reconstruction:
        setting = Setting("", victim, attack, n, seed)
        self.asked.append(setting)
        self.deadlines.append(more["deadline"])
        return self.answer(setting)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Prepared]:
    """Puts prepared results in the place of the attack. There are no null victims unless asked."""

    def put(answer: Callable[[Setting], Reconstruction], *, nulls: bool = False) -> Prepared:
        attack = Prepared(answer)
        monkeypatch.setattr("recollect.auditing.trying.reconstruct", attack)
        monkeypatch.setattr("recollect.auditing.run.NULLS", {"shuffled": shuffled} if nulls else {})
        return attack

    return put


# Truth.


def test_the_truth_raises_a_verdict_and_makes_no_all_clear_of_a_misfit() -> None:
    for said in (Verdict.UNKNOWN, Verdict.INTERRUPTED):
        assert judge_by_truth(0, 10, 0.0, said) is said
        assert judge_by_truth(2, 10, 0.0, said) is Verdict.PARTLY
        assert judge_by_truth(9, 10, 0.0, said) is Verdict.EXPOSED
    assert judge_by_truth(0, 10, 0.0, Verdict.PARTLY) is Verdict.NOT_FOUND


@pytest.mark.parametrize("known", [False, True])
def test_a_model_trained_by_adam_cannot_be_judged_with_the_truth_either(
    known: bool, tmp_path: Path, prepared: Callable[..., Prepared]
) -> None:
    prepared(lambda setting: found(0.1))
    victim, inputs = easy()
    assert victim.theta_0 is not None
    adam = {"state": {0: {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}}}
    torch.save(dict(victim.theta_0), tmp_path / "a.pt")
    torch.save({"model": dict(victim.theta_f), "optimizer": adam}, tmp_path / "b.pt")
    files = (tmp_path / "a.pt", tmp_path / "b.pt")
    truth = inputs if known else None
    done = audit(*files, truth=truth, n=N, activation="relu", device="cpu", budget=20.0)
    assert done.verdict is Verdict.UNKNOWN
    assert done.reason == "misfit"
    assert (done.score is not None) is known


# The clock.


def test_attacks_that_were_cut_off_decide_nothing(prepared: Callable[..., Prepared]) -> None:
    prepared(lambda setting: found(1.0, status=Status.TIME))
    done = run_audit(easy()[0], N, budget=20.0, device="cpu")
    assert done.verdict is Verdict.UNKNOWN
    assert done.reason == "time"
    assert done.best is not None
    assert (done.best.called, done.best.likely) == (0, 0)


def test_an_attack_that_was_cut_off_is_continued_before_a_costlier_one(
    prepared: Callable[..., Prepared],
) -> None:
    """It has all of the budget then, since nothing can be judged without a finished attack."""
    answers = itertools.chain([Status.TIME], itertools.repeat(Status.STATIONARY))
    attack = prepared(lambda setting: found(1.0, status=next(answers)))
    began = time.monotonic()
    done = run_audit(easy()[0], N, budget=100.0, device="cpu")
    assert done.verdict is Verdict.EXPOSED
    assert [one.attack.parameters for one in attack.asked] == ["last", "last", "last"]
    assert [one.seed for one in attack.asked[:2]] == [0, 0]  # the same attack, continued
    assert attack.deadlines[0] < began + 60 < began + 99 < attack.deadlines[1]
    assert "no attack had run to its end" in done.attempts[1].ended


def test_what_is_expected_to_end_in_time_comes_first(
    prepared: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = prepared(lambda setting: found(0.1))

    def forecast(victim: Victim, attack: Exact, n: int, machine: object) -> Forecast:
        seconds = 1e4 if attack.parameters == "last" else 1.0
        return Forecast(attack.parameters, n, 1000, 30, seconds, 0.01, 1, "", True)

    monkeypatch.setattr("recollect.auditing.run.forecast", forecast)
    run_audit(easy()[0], N, budget=100.0, device="cpu")
    assert [one.attack.parameters for one in attack.asked[:2]] == ["all", "last"]


def test_an_audit_in_which_nothing_was_tried_cannot_be_judged() -> None:
    late = attempt(None, hindrance="time")
    assert conclude(None, [late], []) == (Verdict.UNKNOWN, "time")
    counted = attempt(None, hindrance="counting")
    assert conclude(None, [counted], []) == (Verdict.UNKNOWN, "counting")
    assert conclude(None, [attempt(None)], []) == (Verdict.UNKNOWN, "no-evidence")


def test_a_finished_attack_makes_no_all_clear_of_a_firm_one_that_was_cut_off() -> None:
    poor, rich = attempt(found(0.1)), attempt(found(1.0, status=Status.TIME), seed=1)
    assert conclude(poor, [poor, rich], []) == (Verdict.UNKNOWN, "time")
    vague = attempt(found(0.1, status=Status.TIME), seed=1)
    assert conclude(poor, [poor, vague], []) == (Verdict.NOT_FOUND, "time")
    assert conclude(poor, [poor], []) == (Verdict.NOT_FOUND, None)


def test_null_victims_count_only_if_their_attack_ran_to_its_end(
    tmp_path: Path, prepared: Callable[..., Prepared], capsys: pytest.CaptureFixture[str]
) -> None:
    victim, _ = easy()
    assert victim.theta_0 is not None
    torch.save(dict(victim.theta_0), tmp_path / "a.pt")
    torch.save(dict(victim.theta_f), tmp_path / "b.pt")
    for status, tested in ((Status.TIME, False), (Status.STATIONARY, True)):

        def answer(setting: Setting, status: Status = status) -> Reconstruction:
            real = all(
                torch.equal(setting.victim.theta_f[name], value)
                for name, value in victim.theta_f.items()
            )
            return found(1.0) if real else found(0.1, status=status)

        prepared(answer, nulls=True)
        files = [str(tmp_path / "a.pt"), str(tmp_path / "b.pt"), "--out", str(tmp_path / "out")]
        options = ["--n", str(N), "--activation", "relu", "--budget", "20s", "--device", "cpu"]
        assert main(["audit", *files, *options]) == 0
        said = capsys.readouterr()
        facts = json.loads((tmp_path / "out" / "audit.json").read_text())
        page = (tmp_path / "out" / "report.html").read_text()
        assert facts["verdict"] == "exposed"
        assert facts["false_alarm_test"] is tested
        assert facts["null_points"] == (N if tested else 0)
        assert [one["whole"] for one in facts["nulls"]] == [tested]
        box = page[page.index('<div class="verdict') :].partition("</div>")[0]
        assert ("There was no false-alarm test" in box) is not tested
        assert ("no false-alarm test" in said.out + said.err) is not tested


def test_one_null_victim_is_attacked_until_the_attack_ends(
    prepared: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = easy()[0]
    attack = prepared(lambda setting: found(1.0 if setting.victim is victim else 0.1))
    monkeypatch.setattr("recollect.auditing.run.NULLS", {"a": shuffled, "b": shuffled})
    began = time.monotonic()
    done = run_audit(victim, N, budget=500.0, device="cpu")
    assert [run.whole for run in done.nulls] == [True, True]
    first, second = attack.deadlines[-2:]
    assert second < began + 400 < began + 499 < first


def test_where_nothing_could_be_a_false_alarm_one_null_victim_is_enough(
    prepared: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = easy()[0]
    three = dict.fromkeys("abc", shuffled)
    prepared(lambda setting: found(0.3))
    monkeypatch.setattr("recollect.auditing.run.NULLS", three)
    assert [run.kind for run in run_audit(victim, N, budget=500.0, device="cpu").nulls] == ["a"]
    # A point that is called in it says little alone.
    called = [1.0] + [0.1] * (N - 1)
    prepared(lambda setting: found(0.3 if setting.victim is victim else called))
    monkeypatch.setattr("recollect.auditing.run.NULLS", three)
    done = run_audit(victim, N, budget=500.0, device="cpu")
    assert [run.called for run in done.nulls] == [1, 1, 1]
    # A single point that could count is an alarm.
    one = [1.0] + [0.1] * (N - 1)
    prepared(lambda setting: found(one if setting.victim is victim else 0.1))
    monkeypatch.setattr("recollect.auditing.run.NULLS", three)
    done = run_audit(victim, N, budget=500.0, device="cpu")
    assert [run.kind for run in done.nulls] == ["a", "b", "c"]


# The best attempt, and its confirmation.


def test_the_best_attempt_explains_most_and_need_not_call_most(
    prepared: Callable[..., Prepared],
) -> None:
    """A shuffled null: six of its points seem likely at the largest of three losses."""
    six = [0.7] * 6 + [0.1] * 8
    losses = {0: 2.2e-2, 1: 9e-2}

    def answer(setting: Setting) -> Reconstruction:
        if setting.attack.parameters == "all":
            raise VictimError("expected less; give less")
        if setting.seed in losses:
            return found(six, loss=losses[setting.seed], n=14)
        return found(0.2, loss=4e-3, points=setting.seed, n=14)

    prepared(answer)
    done = run_audit(easy()[0], 14, budget=20.0, device="cpu")
    assert done.best is not None
    assert done.best.found is not None
    assert done.best.found.loss == 4e-3
    assert done.verdict is Verdict.NOT_FOUND
    attempts = [attempt(answer(Setting("", easy()[0], Exact(), 14, seed))) for seed in (0, 20, 30)]
    assert most_explaining(attempts, CPU) is attempts[1]


def test_more_points_have_to_explain_more_than_chance() -> None:
    losses = {6: 1.6e-3, 7: 3e-4, 9: 2.9e-4}
    few, more, far = (
        attempt(replace(found(0.5, n=n, loss=loss), coordinates=9 * n))
        for n, loss in losses.items()
    )
    assert most_explaining([few, more, far], CPU) is more


def test_attacks_on_other_evidence_are_compared_by_all_layers() -> None:
    """The right points leave more of a large change than wrong ones of a small one: their losses
    are not comparable."""
    _, inputs = easy()
    guess = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(1)).double()
    last = attempt(replace(found(0.9, loss=1e-6), inputs=guess))
    every = attempt(replace(found(0.6, loss=1e-2), inputs=inputs.double()), seed=1)
    every = replace(every, setting=replace(every.setting, attack=Exact(parameters="all")))
    assert most_explaining([last, every], CPU) is every
    assert most_explaining([every, last], CPU) is every


def test_a_point_counts_only_if_another_random_start_finds_it(
    prepared: Callable[..., Prepared],
) -> None:
    victim = easy()[0]
    attack = prepared(lambda setting: found(1.0, points=setting.seed))
    done = run_audit(victim, N, budget=20.0, device="cpu")
    assert (done.verdict, done.reason) == (Verdict.UNKNOWN, "no-evidence")
    assert done.called is not None
    assert not done.called.any()
    assert len({one.seed for one in attack.asked}) == len(attack.asked) <= 3
    attack = prepared(lambda setting: found(1.0))
    done = run_audit(victim, N, budget=20.0, device="cpu")
    assert (done.verdict, done.reason) == (Verdict.EXPOSED, None)
    assert done.confirmed is not None
    assert done.confirmed.all()
    assert len(attack.asked) == 2  # one to find them, one to confirm them


def test_a_confirmation_that_the_budget_does_not_allow_is_said_to_be_missing(
    prepared: Callable[..., Prepared],
) -> None:
    def answer(setting: Setting) -> Reconstruction:
        status = Status.TIME if setting.seed else Status.STATIONARY
        return found(1.0, points=setting.seed, status=status)

    prepared(answer)
    done = run_audit(easy()[0], N, budget=20.0, device="cpu")
    assert (done.verdict, done.reason) == (Verdict.UNKNOWN, "time")


def test_a_start_that_was_cut_off_may_have_found_the_same_points(
    prepared: Callable[..., Prepared],
) -> None:
    def answer(setting: Setting) -> Reconstruction:
        return found(1.0, status=Status.TIME if setting.seed else Status.STATIONARY)

    prepared(answer)
    done = run_audit(easy()[0], N, budget=20.0, device="cpu")
    assert done.verdict is Verdict.EXPOSED


def test_points_are_the_same_up_to_sign_where_signs_are_open(
    prepared: Callable[..., Prepared],
) -> None:
    def answer(setting: Setting, settled: bool) -> Reconstruction:
        one = found(1.0, signs_settled=settled)
        return replace(one, inputs=-one.inputs) if setting.seed else one

    for settled, verdict in ((False, Verdict.EXPOSED), (True, Verdict.UNKNOWN)):
        prepared(lambda setting, settled=settled: answer(setting, settled))
        assert run_audit(easy()[0], N, budget=20.0, device="cpu").verdict is verdict


@pytest.mark.parametrize(
    ("null_loss", "same", "fits", "verdict"),
    [
        (0.9, True, True, Verdict.PARTLY),
        (0.9, True, False, Verdict.PARTLY),  # evidence counts whatever the files suggest
        (0.9, False, True, Verdict.NOT_FOUND),  # each start ends somewhere else
        (0.9, False, False, Verdict.UNKNOWN),
        (0.3, True, True, Verdict.NOT_FOUND),  # null victims are explained nearly as well
        (None, True, True, Verdict.NOT_FOUND),  # no null victim was attacked
    ],
)
def test_points_that_another_start_reproduces_are_recognisable_without_confidence(
    null_loss: float | None,
    same: bool,
    fits: bool,
    verdict: Verdict,
    prepared: Callable[..., Prepared],
) -> None:
    victim = easy()[0]

    def answer(setting: Setting) -> Reconstruction:
        real = setting.victim is victim
        loss = 0.2 if real else null_loss or 0.0
        return found(0.0, loss=loss, points=0 if same else setting.seed)

    attack = prepared(answer, nulls=null_loss is not None)
    misfit = Finding(Severity.LIMITS, "", "", "", code="adam", reason="misfit")
    past = History(0.0, () if fits else (misfit,))
    done = run_audit(victim, N, budget=20.0, past=past, device="cpu")
    assert done.verdict is verdict
    assert done.best is not None
    level = "recognisable" if verdict is Verdict.PARTLY else "none"
    assert done.best.levels == (level,) * N
    assert done.called is not None
    assert not done.called.any()
    assert any(one.victim is not victim for one in attack.asked) == (null_loss is not None)


def test_points_have_levels() -> None:
    sure = [CALLED, RECOGNISABLE, 0.1, 1.0, 1.0, RECOGNISABLE]
    withheld = (
        Withheld((3,), "for a test"),
        Withheld((4,), UNCONFIRMED),
        Withheld((5,), SPARSE),
    )
    known = found(sure, withheld=withheld)
    expected = ("recovered", "recognisable", "none", "recognisable", "none", "none")
    assert levels(known) == expected
    assert set(levels(replace(known, status=Status.TIME))) == {"none"}


# Activations.


def _unnamed() -> Victim:
    """A victim of which nobody said the activation."""
    victim = easy()[0]
    network = replace(victim.network, assumed=True)  # type: ignore[type-var]
    return Victim(network, victim.theta_0, victim.theta_f)


def _phi(setting: Setting) -> str:
    return str(setting.victim.network.activation)  # type: ignore[attr-defined]


def test_other_activations_are_not_tried_where_the_assumed_one_leaves_little(
    prepared: Callable[..., Prepared],
) -> None:
    attack = prepared(lambda setting: found(0.1, loss=3.5e-3))
    run_audit(_unnamed(), N, budget=20.0, device="cpu")
    assert {_phi(one) for one in attack.asked} == {"relu"}
    attack = prepared(lambda setting: found(0.1, loss=5e-2))
    run_audit(_unnamed(), N, budget=20.0, device="cpu")
    assert len({_phi(one) for one in attack.asked}) == 8


@pytest.mark.parametrize("status", [Status.TIME, Status.STATIONARY])
def test_a_guess_that_was_cut_off_does_not_beat_a_finished_attempt(
    status: Status, prepared: Callable[..., Prepared]
) -> None:
    def answer(setting: Setting) -> Reconstruction:
        guess = _phi(setting) == "gelu"
        return found(0.9, loss=1e-6, status=status) if guess else found(0.1, loss=5e-2)

    prepared(answer)
    done = run_audit(_unnamed(), N, budget=20.0, device="cpu")
    assert done.best is not None
    assert _phi(done.best.setting) == ("relu" if status is Status.TIME else "gelu")


# The number of points.


def test_a_number_of_points_that_cannot_be_seen_is_asked_for(
    tmp_path: Path, prepared: Callable[..., Prepared]
) -> None:
    generator = torch.Generator().manual_seed(0)
    draw = torch.randn(2, 40, 30, generator=generator)
    before = {"0.weight": draw[0], "2.weight": torch.randn(3, 40, generator=generator)}
    after = {
        "0.weight": draw[0] + 0.01 * draw[1],  # fills all 30 directions
        "2.weight": before["2.weight"] + 0.01 * torch.randn(3, 40, generator=generator),
    }
    torch.save(before, tmp_path / "a.pt")
    torch.save(after, tmp_path / "b.pt")

    def answer(setting: Setting) -> Reconstruction:
        n = setting.n or 7
        return replace(found(0.1, n=n), inputs=torch.randn(n, 30).double())

    attack = prepared(answer)
    files = [str(tmp_path / "a.pt"), str(tmp_path / "b.pt"), "--out", str(tmp_path / "out")]
    options = ["--activation", "relu", "--budget", "20s", "--device", "cpu"]
    assert main(["audit", *files, *options]) == 0
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert "number-not-visible" in [one["code"] for one in facts["findings"]]
    assert any("× rank of ΔW1" in one["setting"] for one in facts["attempts"])
    assert len({one.n for one in attack.asked}) > 1
    page = (tmp_path / "out" / "report.html").read_text()
    box = page[page.index('<div class="verdict') :].partition("</div>")[0]
    assert "Give --n" in box
    assert main(["audit", *files, *options, "--n", "50"]) == 0
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert "number-not-visible" not in [one["code"] for one in facts["findings"]]


# Reasons and the facts.


def test_what_the_files_say_against_the_method_is_the_reason(
    prepared: Callable[..., Prepared],
) -> None:
    prepared(lambda setting: found(0.1))
    for given in ({"misfit": True}, {"reason": "layer"}, {"reason": "adapter"}):
        finding = Finding(Severity.LIMITS, "seen", "consequence", "remedy", code="x", **given)  # type: ignore[arg-type]
        done = run_audit(easy()[0], N, budget=20.0, device="cpu", past=History(0.0, (finding,)))
        assert (done.verdict, done.reason) == (Verdict.UNKNOWN, given.get("reason", "misfit"))


def test_fewer_equations_than_unknowns_are_no_all_clear() -> None:
    short = attempt(replace(found(0.0), equations_effective=10))
    assert conclude(short, [short], []) == (Verdict.UNKNOWN, "counting")


def test_what_null_victims_show_too_is_no_evidence() -> None:
    best = attempt(found(1.0))
    null = NullRun("shuffled", N, N, N, 1.0, True)
    assert conclude(best, [best], [null]) == (Verdict.UNKNOWN, "no-evidence")
    cut = replace(null, whole=False)
    assert conclude(best, [best], [cut])[0] is Verdict.EXPOSED


def test_an_interrupted_audit_says_so() -> None:
    best, poor = attempt(found(1.0)), attempt(found(0.1))
    assert conclude(best, [best], [], interrupted=True) == (Verdict.EXPOSED, "interrupted")
    assert conclude(poor, [poor], [], interrupted=True) == (Verdict.INTERRUPTED, "interrupted")


def test_the_facts_of_an_audit(tmp_path: Path, prepared: Callable[..., Prepared]) -> None:
    sure = [1.0, 0.9, 0.6, 0.1, 0.1, 0.1]
    prepared(lambda setting: found(sure, withheld=(Withheld((1,), "for a test"),)), nulls=True)
    victim, inputs = easy()
    assert victim.theta_0 is not None
    states = [
        {name: value.numpy() for name, value in theta.items()}
        for theta in (victim.theta_0, victim.theta_f)
    ]
    options: dict[str, Any] = {"n": N, "activation": "relu", "device": "cpu", "budget": 20.0}
    facts = json.loads(json.dumps(audit(*states, **options).facts()))
    assert facts["verdict"] == "exposed" or facts["verdict"] == "partly exposed"
    assert facts["reason"] is None
    assert facts["recovered"] == pytest.approx(1 / 6)
    assert facts["recognisable"] == pytest.approx(3 / 6)
    assert facts["points"][1] == {
        "confidence": 0.9,
        "level": "recognisable",
        "withheld": "for a test",
        "confirmed": True,
    }
    assert set(facts["nulls"][0]) >= {"kind", "points", "called", "whole"}
    assert facts["false_alarm_test"] is True
    scored = audit(*states, truth=inputs, **options).facts()
    assert scored["recovered"] == scored["recognisable"] == 0
    assert scored["median"] > 0
    stopped = audit(None, {"layers.0.weight": np.ones((3, 2)), "layers.1.weight": np.ones((1, 3))})
    facts = stopped.facts()
    assert (facts["reason"], facts["points"], facts["nulls"]) == ("no-evidence", [], [])
    assert facts["false_alarm_test"] is False


def test_a_picture_is_marked_by_its_level() -> None:
    known = levels(found([1.0, 0.6, 0.1, 0.1, 0.1, 0.1]))

    def mark(number: int, error: float | None) -> str:
        return _mark(Pair(number, error, None, None), known)

    assert [mark(number, None) for number in (1, 2, 3)] == ["good", "near", "bad"]
    assert [mark(3, error) for error in (0.05, 0.2, 0.3)] == ["good", "near", "bad"]


def test_one_lost_point_does_not_move_the_median() -> None:
    from recollect.truth.metrics import evaluate

    inputs = easy()[1]
    points = inputs.clone()
    points[0] = 50 * torch.randn(64, generator=torch.Generator().manual_seed(0))
    score = evaluate(replace(found(0.5), inputs=points), inputs)
    assert score.rho > 1
    assert score.median < 1e-6
    assert score.facts()["median"] == score.median
    assert math.isfinite(score.median)
