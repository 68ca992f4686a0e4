"""Algorithms 1 and 2 end to end, on victims small enough to know the answer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cases import F64, Memory, generator, interpolated, perturbed, small_mlp
from torch import nn

from recollect import (
    Basis,
    FullSpace,
    GradientDescent,
    Projection,
    RecollectWarning,
    Status,
    Subspace,
    Victim,
    evaluate,
    reconstruct,
)
from recollect.attacks.result import Reconstruction
from recollect.errors import OptionError, VictimError
from recollect.objective.sizes import Sizes
from recollect.simulate.training import train_network
from recollect.solve.loop import Outcome
from recollect.system.device import total_memory
from recollect.truth.data.dataset import Dataset, from_arrays
from recollect.victim.mlp import initial_theta, mlp


@pytest.fixture(scope="module")
def trained() -> tuple[Victim, Dataset]:
    """Two layers, one class a point, wide enough for gradient descent: the paper's CIFAR-10
    setting, small."""
    inputs = torch.randn(5, 12, generator=generator(0), dtype=F64)
    data = from_arrays(inputs, torch.eye(5, dtype=F64))
    network = mlp(12, 600, 5)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(1), dtype=F64)
    return train_network(network, theta_0, data.inputs, data.targets, tolerance=1e-7).victim, data


QUICK = Projection(solver=GradientDescent(iterations=1500), dtype=F64)


def test_algorithm_2_recovers_the_data_of_a_trained_network(
    trained: tuple[Victim, Dataset],
) -> None:
    victim, data = trained
    found = reconstruct(victim, 5, replace(QUICK, restarts=4))
    score = evaluate(found, data.inputs)
    assert found.rank == 5
    assert score.rho < 0.05 < 0.5 < score.chance["span"]
    assert found.loss < 1e-3
    # At interpolation the network's answers at the recovered points are their labels.
    labels = found.predictions[score.matching.found]
    assert float((labels - torch.eye(5, dtype=F64)).abs().max()) < 0.2
    assert [stage.name for stage in found.stages] == ["gradient descent, starts 1 to 4"]
    assert found.loss == pytest.approx(
        found.stages[0].loss, rel=1e-12
    )  # alone and in company the sums differ in order


def test_the_true_subspace_and_the_full_space(trained: tuple[Victim, Dataset]) -> None:
    victim, data = trained
    known = reconstruct(victim, 5, replace(QUICK, space=Basis(U=data.basis), restarts=4))
    assert evaluate(known, data.inputs).rho < 0.05
    inside = known.inputs - known.inputs @ data.basis @ data.basis.T
    assert float(inside.abs().max()) < 1e-9
    full = reconstruct(victim, 5, replace(QUICK, space=FullSpace()))
    assert full.rank == 12
    assert full.singular_values is None
    identity = reconstruct(victim, 5, replace(QUICK, space=Basis(U=torch.eye(12, dtype=F64))))
    torch.testing.assert_close(identity.inputs, full.inputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gram", ["dense", "cg"])
def test_all_parameters(trained: tuple[Victim, Dataset], gram: str) -> None:
    victim, _ = trained
    quick = replace(QUICK, parameters="all", gram=gram, solver=GradientDescent(iterations=30))
    found = reconstruct(victim, 5, quick)
    assert found.equations == (5 + 5) * 600  # ΔW1 within the five directions, and the last layer
    assert found.loss < float(found.trace[0])
    named = reconstruct(victim, 5, replace(quick, parameters="layers.0,layers.1"))
    torch.testing.assert_close(named.inputs, found.inputs, rtol=1e-6, atol=1e-6)
    assert any("conjugate gradients" in note for note in found.notes) == (gram == "cg")


def test_dense_and_cg_walk_the_same_path(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    a, b = (
        reconstruct(
            victim,
            5,
            replace(QUICK, parameters="all", gram=gram, solver=GradientDescent(iterations=10)),
        )
        for gram in ("dense", "cg")
    )
    torch.testing.assert_close(a.trace, b.trace, rtol=1e-3, atol=1e-6)


def test_it_gains_nothing_from_where_the_truth_is(trained: tuple[Victim, Dataset]) -> None:
    """Rotating the world (inputs and first layer) rotates the answer: nothing but the weights is
    used."""
    victim, _ = trained
    Q = torch.linalg.qr(torch.randn(12, 12, generator=generator(0), dtype=F64)).Q
    assert victim.theta_0 is not None
    turned = [
        {**theta, "layers.0.weight": theta["layers.0.weight"] @ Q.T}
        for theta in (victim.theta_0, victim.theta_f)
    ]
    start = replace(
        QUICK, space=Basis(U=torch.eye(12, dtype=F64)[:, :4]), solver=GradientDescent(iterations=20)
    )
    a = reconstruct(victim, 5, start)
    b = reconstruct(Victim(victim.network, *turned), 5, replace(start, space=Basis(U=Q[:, :4])))
    torch.testing.assert_close(a.inputs @ Q.T, b.inputs, rtol=1e-6, atol=1e-6)


def test_norms_are_free_where_the_network_can_tell_them(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    assert not reconstruct(
        victim, 2, replace(QUICK, solver=GradientDescent(iterations=5))
    ).norms_identifiable
    biased, data = interpolated(n=2, d=3, r=3, p=400, bias=True, activation="tanh")
    attack = Projection(
        space=FullSpace(),
        solver=GradientDescent(iterations=3000, step_size=5.0),
        restarts=3,
        dtype=F64,
    )
    found = reconstruct(biased, 2, attack)
    assert found.norms_identifiable
    assert evaluate(found, data.inputs).rho < 0.2
    forced = reconstruct(
        victim, 2, replace(QUICK, norm="free", solver=GradientDescent(iterations=5))
    )
    assert not forced.norms_identifiable  # free to move, but the network cannot tell
    fixed = reconstruct(biased, 2, replace(attack, norm=1.5, solver=GradientDescent(iterations=5)))
    torch.testing.assert_close(fixed.inputs.norm(dim=1), torch.full((2,), 1.5, dtype=F64))


def test_predictions_and_coefficients_belong_to_the_inputs(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    found = reconstruct(victim, 4, replace(QUICK, solver=GradientDescent(iterations=50)))
    torch.testing.assert_close(found.predictions, victim.network(victim.theta_f, found.inputs))
    H = victim.network.features(victim.theta_f, found.inputs)
    delta = victim.delta(["layers.1.weight"])["layers.1.weight"]
    residual = delta - found.coefficients.T @ H
    assert float(residual.square().sum() / delta.square().sum()) == pytest.approx(
        found.loss, rel=1e-6
    )


def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    trained: tuple[Victim, Dataset],
) -> None:
    victim, _ = trained
    quick = Projection(solver=GradientDescent(iterations=40))
    a, b, c = (reconstruct(victim, 5, quick, seed=seed).inputs for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def memory_for(starts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    room = total_memory(torch.device("cpu")) // 4
    monkeypatch.setattr(Sizes, "fit_bytes", lambda self, n: room // starts)


def test_starts_at_once_find_what_they_find_one_by_one(
    trained: tuple[Victim, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = trained
    attack = replace(QUICK, restarts=4, solver=GradientDescent(iterations=200))
    together = reconstruct(victim, 5, attack)
    assert len(together.stages) == 1
    for at_once, groups in ((1, 4), (3, 2)):
        memory_for(at_once, monkeypatch)
        few = reconstruct(victim, 5, attack)
        assert len(few.stages) == groups
        assert few.loss == min(stage.loss for stage in few.stages)
        assert few.loss == pytest.approx(together.loss, rel=1e-6)
        torch.testing.assert_close(few.inputs, together.inputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("at_once", "groups", "left"), [(1, 2, 36 + 60), (2, 2, 36), (3, 1, 24)])
def test_interrupted_and_resumed(
    trained: tuple[Victim, Dataset],
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    groups: int,
    left: int,
) -> None:
    memory_for(at_once, monkeypatch)
    victim, _ = trained
    attack = Projection(solver=GradientDescent(iterations=60), restarts=3)
    last = 85 if at_once < 3 else 37
    straight = reconstruct(victim, 5, attack)
    memory = Memory()
    steps = 0
    step = GradientDescent.step

    def counting(self: GradientDescent, *arguments: object) -> object:
        nonlocal steps
        steps += 1
        if steps == last:
            raise KeyboardInterrupt
        return step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(GradientDescent, "step", counting)
    stopped = reconstruct(victim, 5, attack, resume=memory)
    assert stopped.status is Status.INTERRUPTED
    assert len(stopped.stages) == groups
    resumed = reconstruct(victim, 5, attack, resume=memory)
    assert steps == last + left
    assert torch.equal(resumed.inputs, straight.inputs)
    assert [stage.loss for stage in resumed.stages] == [stage.loss for stage in straight.stages]


def test_a_run_of_other_groups_of_starts_is_not_gone_on_from(
    trained: tuple[Victim, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, _ = trained
    attack, memory = Projection(solver=GradientDescent(iterations=20), restarts=3), Memory()
    memory_for(1, monkeypatch)
    reconstruct(victim, 5, attack, resume=memory)
    memory_for(3, monkeypatch)
    again = reconstruct(victim, 5, attack, resume=memory)
    assert again.resumed_at == 0
    assert torch.equal(again.inputs, reconstruct(victim, 5, attack).inputs)


def test_counting() -> None:
    victim = small_mlp(width=30, c=2, d=5)
    with pytest.raises(VictimError, match=r"31 points × 2 outputs = 62"):
        reconstruct(victim, 31, Projection(space=FullSpace()))
    with pytest.warns(RecollectWarning, match="20 effective equations for 80 coordinates"):
        reconstruct(victim, 20, Projection(space=FullSpace(), solver=GradientDescent(iterations=2)))


def test_what_cannot_be_attacked_says_why() -> None:
    victim = small_mlp()
    assert victim.theta_0 is not None
    same_last = {**victim.theta_f, "layers.1.weight": victim.theta_0["layers.1.weight"]}
    with pytest.raises(VictimError, match="moved layers"):
        reconstruct(Victim(victim.network, victim.theta_0, same_last), 2)
    with pytest.raises(VictimError, match="θ0"):
        reconstruct(Victim(victim.network, None, victim.theta_f), 2)
    for make in (
        lambda: reconstruct(victim, 0),
        lambda: reconstruct(victim, 2, Projection(norm="big")),
        lambda: reconstruct(victim, 2, Projection(norm=-1.0)),
        lambda: reconstruct(victim, 2, Projection(space=Subspace(rank=99))),
        lambda: reconstruct(victim, 2, device="tpu"),
        lambda: Projection(restarts=0),
        lambda: Projection(gram="qr"),
        lambda: Projection(tolerance=math.nan),
    ):
        with pytest.raises(OptionError, match="expected"):
            make()


def test_integer_buffers_do_not_disturb() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 2)).double()
    theta_0 = {name: value.clone() for name, value in net.state_dict().items()}
    theta_f = {
        name: value + 0.1 if value.is_floating_point() else value for name, value in theta_0.items()
    }
    found = reconstruct(
        Victim(net, theta_0, theta_f),
        1,
        replace(QUICK, solver=GradientDescent(iterations=3)),
        resume=Memory(),
    )
    assert math.isfinite(found.loss)


def test_any_module_can_be_a_victim() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 2)
    ).double()
    theta_0 = {name: value.clone() for name, value in net.state_dict().items()}
    theta_f = {name: value + 0.1 * torch.randn_like(value) for name, value in theta_0.items()}
    victim = Victim(net, theta_0, theta_f, input_shape=(16,))
    with pytest.raises(VictimError, match="--space full"):
        reconstruct(victim, 2)
    for parameters in ("last", "all"):
        attack = Projection(
            space=FullSpace(),
            parameters=parameters,
            solver=GradientDescent(iterations=20, step_size=0.1),
            dtype=F64,
        )
        found = reconstruct(victim, 1, attack)
        assert found.inputs.shape == (1, 16)
        assert found.loss < float(found.trace[0])


def test_a_float32_attack_keeps_the_digits_of_a_float64_victim() -> None:
    """Δθ is a thousand times smaller than θ: rounding θ first would leave three digits of it."""
    victim = perturbed(mlp(6, 40, 1), 0, size=1e-4)
    attack = Projection(
        space=FullSpace(), solver=GradientDescent(iterations=1), dtype=torch.float32
    )
    single: Reconstruction = reconstruct(victim, 3, attack)
    double = reconstruct(victim, 3, replace(attack, dtype=F64))
    assert float(single.trace[0]) == pytest.approx(float(double.trace[0]), rel=1e-5)


def test_a_change_too_small_for_float32_is_no_success() -> None:
    """1e-50 is zero in float32; a residual of nothing must not pass for everything explained."""
    victim = perturbed(mlp(6, 40, 1), 0)
    assert victim.theta_0 is not None
    last = "layers.1.weight"
    tiny = [{**victim.theta_0, last: scale * victim.theta_f[last]} for scale in (0.0, 1e-50)]
    small, large = (
        reconstruct(
            Victim(victim.network, tiny[0], {**tiny[0], last: scale * victim.theta_f[last]}),
            2,
            Projection(space=FullSpace(), solver=GradientDescent(iterations=5)),
        )
        for scale in (1e-50, 1.0)
    )
    assert small.loss > 0.01
    assert small.loss == pytest.approx(large.loss, rel=1e-5)


def test_a_forged_checkpoint_cannot_claim_success(trained: tuple[Victim, Dataset]) -> None:
    victim, _ = trained
    memory = Memory()
    attack = Projection(solver=GradientDescent(iterations=20))
    honest = reconstruct(victim, 5, attack, resume=memory)
    ((name, saved),) = memory.saved.items()
    lie = torch.tensor(-1.0, dtype=F64)
    memory.saved[name] = replace(
        saved, run=replace(saved.run, best_loss=lie, best_Z=saved.run.best_Z.roll(1, dims=1))
    )
    assert reconstruct(victim, 5, attack, resume=memory).loss > honest.loss
    for bad in (
        replace(
            saved,
            outcomes=(
                Outcome(torch.ones(2, 2), 0.0, torch.ones(1), 1, 0.0, 0.0, Status.CONVERGED),
            ),
        ),
        replace(saved, run=replace(saved.run, iteration=torch.tensor([-3]))),
        replace(saved, run=replace(saved.run, rung=torch.tensor(-1))),
        replace(saved, run=replace(saved.run, state={"Z": saved.run.state["Z"]})),
        replace(saved, run=replace(saved.run, best_Z=torch.ones(2, 2))),
    ):
        memory.saved[name] = bad
        again = reconstruct(victim, 5, attack, resume=memory)
        assert again.resumed_at == 0
        assert torch.equal(again.inputs, honest.inputs)
