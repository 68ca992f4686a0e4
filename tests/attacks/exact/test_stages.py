"""`auto`, from end to end: what it recovers, what it says when it cannot, and that it goes on after
an interruption."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cases import CPU, F64, Memory, generator, interpolated, perturbed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recollect import (
    Basis,
    Endpoints,
    Exact,
    FullSpace,
    LevenbergMarquardt,
    Projection,
    Status,
    Subspace,
    Victim,
    load,
    reconstruct,
)
from recollect.attacks.base import Context
from recollect.attacks.exact.all_layers import AllLayerStages
from recollect.attacks.exact.confidence import confidence, expected_errors
from recollect.attacks.exact.number import NumberStages
from recollect.attacks.exact.run import STUCK
from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.problem import Problem
from recollect.attacks.reconstruct import UNTESTED
from recollect.attacks.result import Reconstruction
from recollect.attacks.runs import Runs
from recollect.errors import RecollectWarning, VictimError
from recollect.geometry import Sphere
from recollect.objective import normal as normal_file
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective
from recollect.objective.layerwise import LayerwiseObjective
from recollect.simulate.training import minimum_norm, train_network
from recollect.system.progress import quiet
from recollect.truth.data.dataset import Dataset
from recollect.truth.data.synthetic import synthetic
from recollect.truth.metrics import evaluate
from recollect.truth.recipe import Recipe
from recollect.victim.mlp import initial_theta, mlp, random_features
from recollect.victim.parity import Parity

pytest.importorskip("flint")
CONTEXT = Context(seed=0, device=CPU, progress=quiet)


def network_on_synthetic(
    dtype: torch.dtype = F64, seed: int = 0, width: int = 500, **options: object
) -> tuple[Victim, Dataset]:
    data = synthetic(n=10, dim=12, rank=6, noise=0.5, seed=seed)
    network = mlp(12, width, 1, **options)  # type: ignore[arg-type]
    theta_0 = initial_theta(network, init="fan-in", generator=generator(seed + 1), dtype=dtype)
    return train_network(network, theta_0, data.inputs, data.targets).victim, data


@pytest.fixture(scope="module")
def trained() -> tuple[Victim, Dataset]:
    return network_on_synthetic()


def test_everything_comes_back_with_its_sign(trained: tuple[Victim, Dataset]) -> None:
    victim, data = trained
    found = reconstruct(victim, 10, Exact(retrain="never"))
    score = evaluate(found, data.inputs)
    assert score.rho < 0.005
    assert found.status is Status.STATIONARY
    assert found.confidence is not None
    assert float(found.confidence.min()) > 0.9
    names = [stage.name for stage in found.stages]
    assert names[0] == "random start 1"
    assert "both endpoints" in names
    assert names[-1].startswith("signs by")
    assert all(stage.seconds > 0 and stage.iterations > 0 for stage in found.stages)
    losses = [stage.loss for stage in found.stages]
    assert losses[-1] < 0.1 * losses[0]
    again = reconstruct(victim, 10)
    assert torch.equal(found.inputs, again.inputs)


def test_the_number_of_points_is_found(trained: tuple[Victim, Dataset]) -> None:
    victim, data = trained
    found = reconstruct(victim, None)
    assert len(found.inputs) == 10
    assert evaluate(found, data.inputs).rho < 0.005
    assert any("n = 10 from the residual" in note and "; clear" in note for note in found.notes)


def test_one_endpoint_is_less_exact_than_both(trained: tuple[Victim, Dataset]) -> None:
    victim, data = trained
    scores = {
        endpoints: evaluate(
            reconstruct(victim, 10, Exact(endpoints=endpoints)), data.inputs
        ).rho_up_to_sign
        for endpoints in (Endpoints.FINAL, Endpoints.INITIAL, Endpoints.BOTH)
    }
    assert scores[Endpoints.BOTH] < 0.2 * min(scores[Endpoints.FINAL], scores[Endpoints.INITIAL])


def test_levenberg_marquardt_by_itself(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    found = reconstruct(
        victim, 10, Projection(solver=LevenbergMarquardt(iterations=30), restarts=2)
    )
    assert len(found.stages) == 2
    assert found.step_size is None
    finite = found.trace[torch.isfinite(found.trace)]
    assert (finite.diff() <= 0).all()  # a step that does not lower the loss is not taken


@pytest.mark.parametrize("kind", ["relu", "relu+bias", "tanh+bias", "sine+bias"])
def test_random_features_are_exact(kind: str) -> None:
    activation, _, bias = kind.partition("+")
    victim, data = interpolated(3, n=6, d=8, r=4, p=200, activation=activation, bias=bool(bias))
    found = reconstruct(victim, 6, Exact(space=Basis(U=data.basis)))
    assert found.status is Status.CONVERGED
    assert evaluate(found, data.inputs).rho < 1e-8
    assert found.norms_identifiable == bool(bias)


def test_odd_features_leave_the_signs_open() -> None:
    victim, data = interpolated(1, n=4, d=6, r=3, p=200, activation="tanh")
    found = reconstruct(victim, 4, Exact(space=Basis(U=data.basis)))
    assert found.status is Status.SIGNS
    assert any("h(−x) = −h(x)" in note for note in found.notes)
    assert evaluate(found, data.inputs).rho_up_to_sign < 1e-6


def test_without_flint_the_points_are_found_up_to_sign(
    trained: tuple[Victim, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, data = trained
    monkeypatch.setattr("recollect.attacks.exact.signs.find_spec", lambda name: None)
    found = reconstruct(victim, 10)
    assert found.status is Status.SIGNS  # ten signs, six equations: least squares cannot
    assert any("python-flint" in note for note in found.notes)
    assert evaluate(found, data.inputs).rho_up_to_sign < 0.005


def test_several_outputs_depth_and_a_torch_module() -> None:
    X = Sphere(10**0.5).project(torch.randn(4, 10, generator=generator(0), dtype=F64))
    network = mlp(10, 300, 3, depth=3)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(1), dtype=F64)
    victim = train_network(network, theta_0, X, torch.eye(4, 3, dtype=F64)).victim
    found = reconstruct(victim, 4)
    assert evaluate(found, X).rho < 0.05
    layers = (nn.Linear(10, 300, bias=False), nn.ReLU(), nn.Linear(300, 300, bias=False), nn.ReLU())
    module = nn.Sequential(*layers, nn.Linear(300, 3, bias=False)).double()
    names = dict(zip(victim.theta_f, ("0.weight", "2.weight", "4.weight"), strict=True))
    before, after = (
        {names[name]: value for name, value in theta.items()} for theta in (theta_0, victim.theta_f)
    )
    twin = reconstruct(Victim(module, before, after), 4)
    assert evaluate(twin, X).rho < 0.05
    torch.testing.assert_close(twin.inputs, found.inputs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_of_features_that_did_not_move_nothing_is_left(seed: int) -> None:
    # From the start of seed 5 every point is held firmly, and yet they are not the data: the
    # residual does not vanish.
    victim, data = interpolated(seed, n=6, d=8, r=4, p=200)
    found = reconstruct(victim, 6, Exact(space=Basis(U=data.basis)))
    assert evaluate(found, data.inputs).rho < 1e-6


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_matrix_free_steps_lead_to_the_same_place(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, data = interpolated(seed, n=6, d=8, r=4, p=200)
    monkeypatch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
    found = reconstruct(victim, 6, Exact(space=Basis(U=data.basis)))
    assert evaluate(found, data.inputs).rho < 1e-6


def test_points_are_counted_in_a_tilted_subspace_too() -> None:
    victim, data = network_on_synthetic(torch.float32, width=800)
    found = reconstruct(victim, None)
    assert len(found.inputs) == 10
    assert evaluate(found, data.inputs).rho_up_to_sign < 0.01


def test_a_subspace_does_not_turn_to_explain_something_else() -> None:
    """Rounding tilts it by 2e-4 here; turned freely it explains thirty times more, and points end
    five times as far."""
    recipe = Recipe(dataset="digits", n=10, width=120, depth=3)
    data = recipe.data()
    found = reconstruct(recipe.make(data, CPU).victim, 10)
    assert "turning the subspace" not in [stage.name for stage in found.stages]
    assert evaluate(found, data.inputs).rho < 0.06


def test_a_tilted_subspace_is_left() -> None:
    victim, data = network_on_synthetic(torch.float32, width=800)
    found = reconstruct(victim, 10)
    names = [stage.name for stage in found.stages]
    assert "turning the subspace" in names
    losses = {stage.name: stage.loss for stage in found.stages}
    assert losses["turning the subspace"] < losses["both endpoints"]
    assert evaluate(found, data.inputs).rho < 0.01


@pytest.mark.parametrize("depth", [2, 3])
def test_float32_victims_of_any_depth(depth: int) -> None:
    X = Sphere(10**0.5).project(torch.randn(4, 10, generator=generator(0), dtype=F64))
    network = mlp(10, 300, 3, depth=depth)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(1), dtype=torch.float32)
    victim = train_network(network, theta_0, X, torch.eye(4, 3, dtype=F64)).victim
    assert evaluate(reconstruct(victim, 4), X).rho < 0.05


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.99])
def test_interrupted_anywhere_it_goes_on_to_the_same_bits(
    trained: tuple[Victim, Dataset], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    victim, _ = trained
    straight = reconstruct(victim, 10)
    when = 1 + int(share * sum(stage.iterations for stage in straight.stages))
    step, steps, memory = LevenbergMarquardt.step, 0, Memory()

    def counting(self: LevenbergMarquardt, *arguments: object) -> object:
        nonlocal steps
        steps += 1
        if steps == when:
            raise KeyboardInterrupt
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LevenbergMarquardt, "step", counting)
    stopped = reconstruct(victim, 10, resume=memory)
    assert stopped.status is Status.INTERRUPTED
    resumed = reconstruct(victim, 10, resume=memory)
    assert resumed.resumed_at > 0 or when == 1
    assert torch.equal(resumed.inputs, straight.inputs)
    assert [(s.name, s.loss, s.iterations) for s in resumed.stages] == [
        (s.name, s.loss, s.iterations) for s in straight.stages
    ]


@settings(max_examples=8)
@given(n=st.integers(1, 3), r=st.integers(1, 4), seed=st.integers(0, 99))
def test_absurdly_small_problems_end(n: int, r: int, seed: int) -> None:
    victim = perturbed(mlp(4, 60, 1), seed)
    U = torch.linalg.qr(torch.randn(4, r, generator=generator(seed), dtype=F64)).Q
    found = reconstruct(victim, n, Exact(space=Basis(U=U), iterations=10, rounds=1))
    assert torch.isfinite(found.inputs).all()
    assert 0 <= found.loss <= 1 + 1e-9


def test_duplicates_dead_units_and_too_many_points() -> None:
    data = synthetic(n=4, dim=6, rank=3, noise=0.5, seed=0)
    twice = torch.cat([data.inputs, data.inputs[:1]])
    network = random_features(6, 200, 1)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(1), dtype=F64)
    theta_0["V"][::2] = 0.0  # every other unit is dead
    victim = minimum_norm(network, theta_0, data.inputs, data.targets).victim
    found = reconstruct(victim, 5, Exact(space=Basis(U=data.basis)))  # one more than there are
    score = evaluate(found, data.inputs)
    assert score.rho_up_to_sign < 0.05
    assert evaluate(found, twice).missed == 0
    with pytest.raises(VictimError, match="expected at most 200"):
        reconstruct(victim, 201, Exact(space=FullSpace()))
    with pytest.warns(RecollectWarning, match="impossible by counting"):
        reconstruct(victim, 60, Exact(space=FullSpace(), iterations=2, rounds=0))


def test_confidence_ranks_the_errors_of_a_run_that_is_stuck() -> None:
    """A fifth of the points replaced by others: those are the ones that confidence puts last."""
    victim, data = interpolated(2, n=10, d=8, r=5, p=400)
    objective, geometry = (
        LastLayerObjective(
            Evidence.change(victim).restrict(data.basis), device=CPU, dtype=F64, lifted=True
        ),
        Sphere(8**0.5),
    )
    Z = geometry.project(data.inputs @ data.basis)
    Z[:3] = geometry.project(torch.randn(3, 5, generator=generator(0), dtype=F64))
    state = LevenbergMarquardt().init(Z)
    for _ in range(2):  # not long enough to mend it
        state, _ = LevenbergMarquardt().step(objective, geometry, state, torch.zeros((), dtype=F64))
    errors = expected_errors(objective, geometry, state["Z"])
    truth = torch.minimum(
        torch.cdist(state["Z"], data.inputs @ data.basis),
        torch.cdist(-state["Z"], data.inputs @ data.basis),
    ).min(1)[0]
    from scipy.stats import spearmanr

    assert float((truth / 8**0.5 > 0.1).double().mean()) >= 0.2
    assert spearmanr(errors, truth).statistic >= 0.5
    sure = confidence(objective, geometry, state["Z"])
    assert spearmanr(sure, -truth).statistic >= 0.5
    assert ((sure >= 0) & (sure <= 1)).all()


def test_interrupted_between_two_runs(
    trained: tuple[Victim, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = trained
    straight, memory = reconstruct(victim, 10), Memory()

    def stop(*arguments: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("recollect.attacks.exact.base.find_signs", stop)
        stopped = reconstruct(victim, 10, resume=memory)
    assert stopped.status is Status.INTERRUPTED
    assert torch.equal(reconstruct(victim, 10, resume=memory).inputs, straight.inputs)


def test_forged_outcomes_are_not_believed(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    memory = Memory()
    straight = reconstruct(victim, 10, resume=memory)
    ((name, saved),) = memory.saved.items()
    first = saved.outcomes[0]
    for lie in (
        replace(first, Z=first.Z * torch.nan),
        replace(first, loss=-1.0),
        replace(first, iterations=first.iterations + 1),
        replace(first, trace=torch.ones(3)),
        replace(first, status=Status.INTERRUPTED),
        replace(first, jitter=0.5),
    ):
        memory.saved[name] = replace(saved, outcomes=(lie, *saved.outcomes[1:]))
        again = reconstruct(victim, 10, resume=memory)
        assert again.resumed_at == 0
        assert torch.equal(again.inputs, straight.inputs)


def test_a_shuffled_change_holds_nothing() -> None:
    """Many equations to spare, and a change of the last layer that belongs to no data: firmly held,
    and still wrong."""
    victim, _ = network_on_synthetic(width=1500)
    assert victim.theta_0 is not None
    order = torch.randperm(1500, generator=generator(3))
    last = "layers.1.weight"
    change = (victim.theta_f[last] - victim.theta_0[last])[:, order]
    shuffled = Victim(
        victim.network, victim.theta_0, {**victim.theta_f, last: victim.theta_0[last] + change}
    )
    for attack in (Exact(), Exact(space=Subspace(rank=1))):
        found = reconstruct(shuffled, 4, attack)
        assert found.loss > 0.1
        assert found.confidence is not None
        assert float(found.confidence.max()) < 0.5


@pytest.mark.parametrize("n", [3, None])
def test_noise_is_not_taken_for_data(n: int | None) -> None:
    """A change of the weights that no data made: nothing may be called held, settled or clear."""
    for seed in range(3):
        victim = perturbed(mlp(4, 40, 1), seed)
        found = reconstruct(victim, n, Exact(rounds=2))
        assert found.confidence is not None
        assert float(found.confidence.max()) < 0.5
        assert not found.n_clear
        assert found.status is not Status.CONVERGED
        assert not any(note.endswith("; clear") for note in found.notes)


def test_more_unknowns_than_equations_hold_no_point() -> None:
    victim = perturbed(
        mlp(27, 100, 10), 0
    )  # with both ends and lifted signs, any 27 points would explain it all
    found = reconstruct(victim, 27, Exact(space=FullSpace(), iterations=5, rounds=1))
    assert found.confidence is not None
    assert float(found.confidence.max()) < 0.5 or found.unknowns <= found.equations
    assert found.loss > 1e-6
    deep = perturbed(mlp(10, 100, 10, depth=3), 0)
    found = reconstruct(deep, 50, Exact(space=FullSpace(), iterations=5, rounds=1))
    assert found.unknowns <= found.equations
    assert any(
        "too few equations for the coefficients of both endpoints" in note for note in found.notes
    )


@pytest.mark.parametrize("depth", [2, 3])
def test_a_single_point_is_counted_and_found(depth: int) -> None:
    X = Sphere(8**0.5).project(torch.randn(1, 8, generator=generator(4), dtype=F64))
    network = mlp(8, 100, 1, depth=depth)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(5), dtype=torch.float32)
    victim = train_network(network, theta_0, X, torch.ones(1, 1, dtype=F64)).victim
    found = reconstruct(victim, None)
    assert len(found.inputs) == 1
    assert evaluate(found, X).rho_up_to_sign < 0.05


def test_even_features_leave_the_signs_open() -> None:
    class Absolute(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.abs()

    module = nn.Sequential(
        nn.Linear(5, 200, bias=False), Absolute(), nn.Linear(200, 1, bias=False)
    ).double()
    theta = {name: value.detach().clone() for name, value in module.state_dict().items()}
    X = Sphere(5**0.5).project(torch.randn(4, 5, generator=generator(0), dtype=F64))
    H = (X @ theta["0.weight"].T).abs()
    after = {
        **theta,
        "2.weight": theta["2.weight"] + torch.randn(1, 4, generator=generator(1), dtype=F64) @ H,
    }
    found = reconstruct(Victim(module, theta, after), 4, Exact(space=FullSpace()))
    assert found.status is Status.SIGNS
    assert evaluate(found, X).rho_up_to_sign < 1e-6


def test_a_free_norm_that_does_not_show_is_no_doubt(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    free, fixed = reconstruct(victim, 10, Exact(norm="free")), reconstruct(victim, 10)
    assert torch.equal(free.inputs, fixed.inputs)


def test_permuting_the_units_of_the_victim_changes_nothing(trained: tuple[Victim, Dataset]) -> None:
    """A relabelled hidden layer is the same network: the same points, up to their order and
    rounding."""
    victim, data = trained
    assert victim.theta_0 is not None
    order = torch.randperm(500, generator=generator(0))

    def relabel(theta: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            "layers.0.weight": theta["layers.0.weight"][order],
            "layers.1.weight": theta["layers.1.weight"][:, order],
        }

    other = Victim(victim.network, relabel(victim.theta_0), relabel(victim.theta_f))
    a, b = (evaluate(reconstruct(v, 10), data.inputs) for v in (victim, other))
    torch.testing.assert_close(a.errors, b.errors, rtol=0, atol=1e-4)


# All layers.


def narrow(seed: int) -> tuple[Victim, Dataset]:
    """90 equations in the last layer for 78 unknowns or more, 270 in both."""
    data = synthetic(n=6, dim=6, rank=6, noise=0.5, seed=seed)
    targets = torch.randn(6, 3, generator=generator(5), dtype=F64)
    network = mlp(6, 30, 3)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(seed + 4), dtype=F64)
    return train_network(network, theta_0, data.inputs, targets).victim, data


@functools.cache
def solved(seed: int) -> Reconstruction:
    """Found once, and looked at by several tests."""
    attack = Exact(parameters="all", space=FullSpace(), retrain="never")
    return reconstruct(narrow(seed)[0], 6, attack)


@pytest.mark.parametrize("seed", [1, 2])
def test_all_layers_find_what_the_last_cannot(seed: int) -> None:
    victim, data = narrow(seed)
    last, every = reconstruct(victim, 6), reconstruct(victim, 6, Exact(parameters="all"))
    names = [stage.name for stage in every.stages]
    assert "random start 1, gates closing" in names
    assert "hard gates" in names
    assert every.status is Status.STATIONARY
    assert evaluate(last, data.inputs).rho > 0.4
    assert evaluate(every, data.inputs).rho < 0.1


@pytest.mark.parametrize("turned", [[2], [0, 4], [1, 3, 5]])
def test_points_on_the_wrong_side_of_the_origin_are_turned_back(turned: list[int]) -> None:
    victim, data = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    found = solved(1)
    assert evaluate(found, data.inputs).rho < 0.1
    right = found.inputs
    Z = right.clone()
    Z[turned] = -Z[turned]
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        stages._keep(*stages._through("both endpoints", (0.02,), Endpoints.BOTH, Z))
        stuck = stages.outcome
        assert float((stuck.Z * right).sum(1)[turned].min()) < 0
        stages._mend(Endpoints.BOTH)
    assert stages.outcome.loss < 0.5 * stuck.loss
    assert evaluate(replace(found, inputs=stages.Z), data.inputs).rho < 0.15
    # A single point stays where it was turned to. Several may drift away, for respawning to mend.
    if len(turned) == 1:
        assert "turned to the other side" in stages.stages[0].name


def test_points_on_the_right_side_stay_there() -> None:
    victim, _ = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    right = solved(1).inputs
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        stages._keep(*stages._through("both endpoints", (0.02,), Endpoints.BOTH, right))
        before = stages.outcome
        stages._turn(Endpoints.BOTH)
    assert stages.outcome.loss <= before.loss
    assert bool(((stages.Z * right).sum(1) > 0).all())


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("gone", [0, 3])
def test_a_missing_point_is_found_and_none_is_looked_for_where_all_are(
    seed: int, gone: int
) -> None:
    victim, data = narrow(seed)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    found = solved(seed)
    Z = found.inputs.clone()
    Z[gone] = Z[(gone + 1) % 6] + Z[(gone + 2) % 6]  # it shares what is others' already
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        stages._keep(*stages._through("both endpoints", (0.02,), Endpoints.BOTH, found.inputs))
        whole = stages.outcome.loss
        assert not len(stages._missing(generator(0)))
        stages.state = None
        objective = stages._objective(Endpoints.BOTH, 0.02)
        outcome = stages._descend(
            "stuck", objective, problem.geometry.project(Z), solver=LevenbergMarquardt(iterations=1)
        )
        stages._keep(objective, outcome)
        assert stages.outcome.loss > 3 * whole
        assert len(stages._missing(generator(0)))
        stages._respawn(Endpoints.BOTH)
    assert len(stages.Z) == 6
    assert stages.outcome.loss < 1.05 * whole
    assert evaluate(replace(found, inputs=stages.Z), data.inputs).rho < 0.15


def test_nothing_is_added_where_the_equations_would_not_count_it() -> None:
    victim, _ = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        Z = problem.geometry.project(torch.randn(24, 6, generator=generator(0), dtype=F64))
        objective = stages._objective(Endpoints.BOTH, 0.02)
        assert problem.determined(24, objective)
        assert not problem.determined(25, objective)
        stages._keep(
            objective,
            stages._descend("start", objective, Z, solver=LevenbergMarquardt(iterations=1)),
        )
        assert len(stages._missing(generator(0))) == 0


def test_restarts_of_all_layers_keep_the_one_that_explains_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, _ = narrow(2)
    attack = Exact(parameters="all", rounds=0, restarts=3)
    names = [stage.name for stage in reconstruct(victim, 6, attack).stages]
    assert [f"random start {k}, gates closing" in names for k in (1, 2, 3, 4)] == [
        True,
        True,
        True,
        False,
    ]
    assert names.count("both endpoints") == 3
    assert names.count("hard gates") == 1

    problem = Problem.of(victim, replace(attack, space=FullSpace()), CPU)
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        objective, outcome = stages._through(
            "both endpoints", (0.02,), Endpoints.BOTH, torch.eye(6, dtype=F64)
        )
        losses = [0.3, 0.1, 0.2]
        monkeypatch.setattr(
            stages,
            "_from_start",
            lambda n, ends, k: stages._keep(objective, replace(outcome, loss=losses[k])),
        )
        stages._best_start(lambda k: stages._from_start(6, Endpoints.BOTH, k))
    assert stages.outcome.loss == 0.1


@pytest.mark.parametrize(("doubts", "starts"), [([False], 1), ([True, False], 2), ([True] * 9, 3)])
def test_starts_go_on_while_a_point_is_in_doubt(
    doubts: list[bool], starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, data = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    tried, left = [], iter(doubts)
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        objective, outcome = stages._through("both endpoints", (0.02,), Endpoints.BOTH, data.inputs)
        losses = [0.3, 0.1, 0.2]

        def attempt(k: int) -> None:
            tried.append(k)
            stages._keep(objective, replace(outcome, loss=losses[k]))

        monkeypatch.setattr(stages, "_in_doubt", lambda: next(left))
        stages._best_start(attempt, most=3)
    assert tried == list(range(starts))
    assert stages.outcome.loss == min(losses[:starts])


@pytest.mark.parametrize("n", [1, 2])
def test_turning_ends_where_nothing_gets_better(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, data = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        stages._keep(*stages._through("both endpoints", (0.02,), Endpoints.BOTH, data.inputs[:n]))
        worse = replace(stages.outcome, loss=2 * stages.outcome.loss)
        tried = 0

        def fail(*arguments: object) -> tuple[object, object]:
            nonlocal tried
            tried += 1
            return stages.objective, worse

        monkeypatch.setattr(
            stages, "_turned_losses", lambda: torch.full((n,), stages.outcome.loss, dtype=F64)
        )
        monkeypatch.setattr(stages, "_through", fail)
        stages._turn(Endpoints.BOTH)
    assert tried == {1: 1, 2: 3}[n]  # both together, then each


def test_points_are_turned_and_respawned_while_the_loss_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, data = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    losses, order = iter([0.8, 0.8, 0.7, 0.5, 0.5, 0.499]), []
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        objective, outcome = stages._through("both endpoints", (0.02,), Endpoints.BOTH, data.inputs)
        stages._keep(objective, replace(outcome, loss=1.0))

        def falls(name: str) -> None:
            order.append(name)
            stages._keep(objective, replace(outcome, loss=next(losses)))

        def respawn(ends: Endpoints, always: bool) -> None:
            falls("respawn in any case" if always else "respawn")

        monkeypatch.setattr(stages, "_turn", lambda ends: falls("turn"))
        monkeypatch.setattr(stages, "_respawn", respawn)
        stages._mend(Endpoints.BOTH)
    # The last two gained too little to go on.
    assert order == ["turn", "respawn in any case", *["turn", "respawn"] * 2]


def test_an_interruption_keeps_what_the_last_layer_found(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, _ = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        stages._keep(
            *stages._through("both endpoints", (0.02,), Endpoints.BOTH, torch.ones(6, 6, dtype=F64))
        )
        before = stages.state

        def stop(*arguments: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(stages, "_from_start", stop)
        with pytest.raises(KeyboardInterrupt):
            stages._best_start(lambda k: stages._from_start(6, Endpoints.BOTH, k))
        assert stages.state is before


def test_all_layers_are_no_worse_than_the_last_where_that_is_enough(
    trained: tuple[Victim, Dataset],
) -> None:
    victim, data = trained
    found = reconstruct(victim, 10, Exact(parameters="all"))
    assert evaluate(found, data.inputs).rho < 0.005
    assert not any("gates closing" in stage.name for stage in found.stages)


def test_hidden_signs_are_lifted_in_all_layers_too() -> None:
    """One output, ten points in six dimensions, the first layer alone; signs are right or said to
    be open."""
    for seed in (0, 1):
        victim, data = network_on_synthetic(width=500, seed=seed)
        found = reconstruct(victim, 10, Exact(parameters="layers.0.weight", rounds=1))
        score = evaluate(found, data.inputs)
        assert score.rho_up_to_sign < 0.35 < 0.7 < score.chance["span_up_to_sign"]
        assert found.status is Status.SIGNS or score.rho == pytest.approx(score.rho_up_to_sign)
        assert not any(
            Parity.LINEAR.value in note for note in found.notes
        )  # as it would be without lifting


def test_all_layers_go_on_after_an_interruption() -> None:
    victim, _ = narrow(2)
    fewer = Tuning(rungs_falling=(0.5, 0.06), rungs_again=(0.1,), rungs_closing=(0.05,))
    attack = Exact(parameters="all", rounds=1, tuning=fewer)
    straight, memory = reconstruct(victim, 6, attack), Memory()
    assert torch.equal(straight.inputs, reconstruct(victim, 6, attack).inputs)
    for stop_at in (1, 2):
        seen = 0

        def stop(*arguments: object, stop_at: int = stop_at) -> None:
            nonlocal seen
            seen += 1
            if seen == stop_at:
                raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("recollect.attacks.exact.all_layers.expected_errors", _interrupting(stop))
            stopped = reconstruct(victim, 6, attack, resume=memory)
        assert stopped.status is Status.INTERRUPTED
    assert torch.equal(reconstruct(victim, 6, attack, resume=memory).inputs, straight.inputs)


def _interrupting(stop: Callable[[], None]) -> Callable[..., Tensor]:
    def errors(*arguments: object) -> Tensor:
        stop()
        return expected_errors(*arguments)  # type: ignore[arg-type]

    return errors


def test_a_smooth_network_needs_no_gates_to_close() -> None:
    data = synthetic(n=6, dim=6, rank=6, noise=0.5, seed=1)
    network = mlp(6, 30, 3, activation="tanh", bias=True)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(4), dtype=F64)
    targets = torch.randn(6, 3, generator=generator(5), dtype=F64)
    victim = train_network(network, theta_0, data.inputs, targets).victim
    found = reconstruct(victim, 6, Exact(parameters="all"))
    assert found.norms_identifiable
    assert evaluate(found, data.inputs).rho < 0.2


def test_all_layers_where_the_last_did_not_move() -> None:
    victim, _ = narrow(1)
    still = Victim(
        victim.network,
        {**victim.theta_0, "layers.1.weight": victim.theta_f["layers.1.weight"]},
        victim.theta_f,
    )  # type: ignore[dict-item]
    found = reconstruct(still, 6, Exact(parameters="all", rounds=0, iterations=10))
    assert found.loss < 1


def test_a_module_with_hidden_signs_says_so() -> None:
    data = synthetic(n=5, dim=3, rank=3, noise=0.5, seed=0)
    module = nn.Sequential(
        nn.Linear(3, 12, bias=False), nn.ReLU(), nn.Linear(12, 1, bias=False)
    ).double()
    torch.manual_seed(0)
    theta = {
        name: torch.randn(value.shape, dtype=F64) / 2 for name, value in module.state_dict().items()
    }
    network = Victim(module, theta, theta).network
    victim = train_network(network, theta, data.inputs, data.targets).victim
    # The signs are open however far the descents go.
    short = Tuning(
        rungs_falling=(0.5,), rungs_closing=(0.1,), rungs_closed=(0.0,), starts=1, starts_in_doubt=1
    )
    found = reconstruct(victim, 5, Exact(parameters="all", rounds=0, iterations=20, tuning=short))
    assert not found.signs_settled
    assert [one.why for one in found.withheld] == [UNTESTED]  # a module, not an MLP
    assert found.status is Status.SIGNS
    assert any("signs are not settled" in note for note in found.notes)


def test_the_loss_of_all_layers_is_that_of_the_network_as_it_is() -> None:
    victim, _ = narrow(2)
    found = reconstruct(victim, 6, Exact(parameters="all", rounds=0))
    names = victim.select("all")
    evidence = Evidence.change(victim).at(Endpoints.PATH)
    plain = LayerwiseObjective(evidence, names, device=CPU, dtype=F64)
    assert found.loss == pytest.approx(
        float(plain.fit(found.inputs, gradient=False).loss), rel=1e-6
    )
    assert found.equations == 30 * found.rank + 90


def test_a_number_is_not_clear_if_the_search_for_one_more_was_stuck(
    trained: tuple[Victim, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = trained
    whole = NumberStages._search_anew

    def stuck(self: NumberStages, n: int, start: int) -> float:
        return max(whole(self, n, start), 0.5 if n > 10 else 0.0)

    monkeypatch.setattr(NumberStages, "_search_anew", stuck)
    found = reconstruct(victim, None)
    assert len(found.inputs) == 10
    assert found.n_clear is False
    assert any("the search for one more was stuck" in note for note in found.notes)


@pytest.mark.filterwarnings("ignore::recollect.errors.RecollectWarning")
def test_the_last_layer_is_searched_from_other_starts_while_in_doubt() -> None:
    """More points than the equations can tell: every search ends in doubt, and the best is kept."""
    victim, data = interpolated(0, n=12, d=8, r=4, p=40)

    def losses(**changes: float) -> tuple[list[float], float]:
        attack = Exact(space=Basis(U=data.basis), rounds=2, tuning=replace(Tuning(), **changes))
        found = reconstruct(victim, 12, attack)
        names = [stage.name for stage in found.stages]
        starts = [k for k, name in enumerate(names) if name.startswith("random start 1")]
        ends = [*starts[1:], len(names)]
        return [
            min(s.loss for s in found.stages[a:b]) for a, b in zip(starts, ends, strict=True)
        ], found.loss

    several, loss = losses()
    assert len(several) == Tuning().searches_in_doubt
    assert loss == pytest.approx(min(several), rel=0.1)
    once, _ = losses(searches_in_doubt=1)
    assert once == several[:1]  # the first search is the same, whatever follows
    expensive, _ = losses(restart_flops=1.0)
    assert expensive == once


@pytest.mark.filterwarnings("ignore::recollect.errors.RecollectWarning")
def test_no_point_is_called_where_more_is_left_than_the_data_leave() -> None:
    victim, data = interpolated(0, n=12, d=8, r=4, p=40)
    attack = Exact(
        space=Basis(U=data.basis), rounds=1, tuning=replace(Tuning(), searches_in_doubt=1)
    )
    found = reconstruct(victim, 12, attack)
    assert found.loss > Tuning().vanished
    assert [one.points for one in found.withheld if one.why == STUCK] == [tuple(range(12))]
    easy, truth = interpolated(0, n=4, d=8, r=4, p=200)
    done = reconstruct(easy, 4, Exact(space=Basis(U=truth.basis)))
    assert done.loss < Tuning().vanished
    assert not done.withheld


def test_a_residual_that_the_data_cannot_leave_is_a_doubt() -> None:
    """Of one small step, the data leave nothing; of a long way, nobody knows what they leave."""
    X = Sphere(3.0).project(torch.randn(4, 9, generator=generator(0), dtype=F64))
    network = mlp(9, 40, 2)
    before = initial_theta(network, init="fan-in", generator=generator(1), dtype=F64)
    for rate, known in ((1e-4, True), (1.0, False)):
        leaves = {name: value.clone().requires_grad_() for name, value in before.items()}
        loss = (network(leaves, X) - torch.eye(4, 2, dtype=F64)).square().mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        after = {
            name: value.detach() - rate * gradient
            for (name, value), gradient in zip(leaves.items(), gradients, strict=True)
        }
        problem = Problem.of(
            Victim(network, before, after), Exact(parameters="all", space=FullSpace()), CPU
        )
        with Runs(CONTEXT, "") as runs:
            stages = AllLayerStages(problem, runs, Exact(), 0)
            assert (stages._floor < 1) == known
            objective, outcome = stages._through("start", (0.0,), Endpoints.BOTH, X)
            stages._keep(objective, outcome)
            assert stages.outcome.loss < stages._floor
            assert not stages._in_doubt()
            stages._keep(objective, replace(outcome, loss=1e-3))
            assert stages._in_doubt() == known


def test_an_exchange_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that end above the best loss may be walked through, but not kept."""
    victim, data = narrow(1)
    problem = Problem.of(victim, Exact(parameters="all", space=FullSpace()), CPU)
    with Runs(CONTEXT, "") as runs:
        stages = AllLayerStages(problem, runs, Exact(), 0)
        objective, outcome = stages._through("both endpoints", (0.02,), Endpoints.BOTH, data.inputs)
        stages._keep(objective, replace(outcome, loss=1.0))
        monkeypatch.setattr(stages, "_errors", lambda: torch.ones(len(data.inputs)))
        losses = iter([1.4, 2.0, 0.5, 0.6, 0.7, 0.8])
        ended = []

        def join(Z: Tensor) -> object:
            ended.append(replace(outcome, Z=Z, loss=next(losses)))
            return ended[-1]

        fell = stages._exchange(3, 0.0, 10, lambda Z: replace(outcome, Z=Z), join)
        assert fell
        assert len(ended) == 6  # two that failed, one that helped, then three in a row that failed
        assert stages.outcome.loss == 0.5
        torch.testing.assert_close(stages.Z, ended[2].Z)
        assert stages.stages[-1].name == "6 respawns"


@pytest.mark.parametrize("seed", [0, 3, 5, 7, 11])
def test_a_subspace_is_not_turned_far_away_to_explain_what_it_does_not_hold(seed: int) -> None:
    """Half of the weights are zero after a change of rank one: ΔW_1 keeps a small gap, and a single
    point in a subspace that turns freely explains most of ΔW_2, often from very far away."""
    drawn = generator(seed)
    scales = {"0.weight": (40, 10), "0.bias": (40,), "2.weight": (1, 40), "2.bias": (1,)}
    before = {
        name: (0.2 if name < "2" else 0.1) * torch.randn(shape, generator=drawn, dtype=F64)
        for name, shape in scales.items()
    }
    x, D = (torch.randn(size, generator=drawn, dtype=F64) for size in (10, 40))
    h = torch.relu(before["0.weight"] @ x + before["0.bias"])
    change = {"0.weight": 0.005 * torch.outer(D, x), "0.bias": 0.05 * D, "2.weight": 0.1 * h[None]}
    after = {
        name: torch.where(value.abs() > value.abs().median(), value, 0.0)
        for name, value in ((name, before[name] + change.get(name, 0.1)) for name in before)
    }
    victim = load(before, after, activation="relu")
    found = reconstruct(victim, 1, Exact(space=Subspace(rank=1)), device=CPU)
    assert found.confidence is not None
    assert float(found.confidence.max()) < 0.5
    assert float(found.inputs.norm()) < 10
