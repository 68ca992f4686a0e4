"""What a point explains, against taking it away or adding it and fitting again."""

from __future__ import annotations

import torch
from cases import CPU, F64, generator, interpolated, perturbed
from hypothesis import given
from hypothesis import strategies as st

from recollect.attacks.exact.respawn import spawn
from recollect.geometry import Sphere
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective
from recollect.victim.mlp import mlp


def span_of(seed: int, c: int, endpoints: Endpoints, lifted: bool) -> LastLayerObjective:
    victim = perturbed(mlp(4, 90, c), seed)
    evidence = Evidence.change(victim).at(endpoints)
    return LastLayerObjective(evidence, device=CPU, dtype=F64, lifted=lifted)


@given(
    seed=st.integers(0, 999),
    n=st.integers(2, 5),
    c=st.integers(1, 3),
    endpoints=st.sampled_from([Endpoints.FINAL, Endpoints.INITIAL, Endpoints.BOTH]),
    lifted=st.booleans(),
)
def test_cost_and_gain_are_differences_of_losses(
    seed: int, n: int, c: int, endpoints: Endpoints, lifted: bool
) -> None:
    objective = span_of(seed, c, endpoints, lifted)
    Z = Sphere(2.0).project(torch.randn(n, 4, generator=generator(seed), dtype=F64))
    loss = float(objective.fit(Z, gradient=False).loss)
    cost = objective.costs(Z)
    for i in range(n):
        others = torch.cat([Z[:i], Z[i + 1 :]])
        without = float(objective.fit(others, gradient=False).loss)
        assert abs(float(cost[i]) - (without - loss)) < 1e-7
        gain = objective.gains(others)(Z[i : i + 1])
        assert abs(float(gain) - (without - loss)) < 1e-7


def test_a_spawned_point_finds_the_one_that_is_missing() -> None:
    victim, data = interpolated(n=5, d=4, r=4, p=400)
    objective, geometry = (
        LastLayerObjective(Evidence.change(victim), device=CPU, dtype=F64, lifted=True),
        Sphere(2.0),
    )
    Z = geometry.project(data.inputs)
    missing = int(objective.costs(Z).argmax())
    rest = torch.cat([Z[:missing], Z[missing + 1 :]])
    (new,) = spawn(objective, geometry, rest, 1, generator(0))
    assert float((new @ Z[missing]).abs()) / 4 > 0.95
    several = spawn(objective, geometry, rest[:2], 3, generator(0))
    directions = several / several.norm(dim=1, keepdim=True)
    cosines = (directions @ directions.T).abs().fill_diagonal_(0)
    assert 1 <= len(several) <= 3
    assert float(cosines.max()) <= 0.9
