"""A network from a bare state dict."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recollect.errors import CheckpointError, OptionError
from recollect.victim.read.infer import METADATA_KEY, Architecture, infer_network


def perceptron(widths: list[int], bias: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, bias=bias), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@given(
    widths=st.lists(st.integers(1, 6), min_size=3, max_size=14),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_it_computes_what_the_module_computes(widths: list[int], bias: bool, seed: int) -> None:
    """Also from a shuffled dict and with more than ten layers, where alphabetical order is
    wrong."""
    torch.manual_seed(seed)
    module = perceptron(widths, bias).double()
    state = module.state_dict()
    shuffled = {name: state[name] for name in sorted(state, reverse=bool(seed % 2))}
    network = infer_network(shuffled, "tanh")
    X = torch.randn(3, widths[0], dtype=torch.float64)
    torch.testing.assert_close(network(shuffled, X), module(X))
    assert (network.d, network.c, network.depth) == (widths[0], widths[-1], len(widths) - 1)


def test_names_without_numbers_are_ordered_by_shape() -> None:
    state = {
        "output.weight": torch.ones(2, 4),
        "hidden.weight": torch.ones(4, 3),
        "input.weight": torch.ones(3, 7),
    }
    assert [layer.weight for layer in infer_network(state).layers] == [
        "input.weight",
        "hidden.weight",
        "output.weight",
    ]
    either = {"encoder.weight": torch.ones(50, 8), "decoder.weight": torch.ones(8, 50)}
    with pytest.raises(CheckpointError, match="several orders"):
        infer_network(either)
    mixed = {
        "head.weight": torch.ones(2, 6),
        "fc2.weight": torch.ones(6, 6),
        "fc10.weight": torch.ones(6, 6),
        "fc1.weight": torch.ones(6, 9),
    }
    assert [layer.weight for layer in infer_network(mixed).layers] == [
        "fc1.weight",
        "fc2.weight",
        "fc10.weight",
        "head.weight",
    ]
    ambiguous = {
        "c.weight": torch.ones(3, 7),
        "b.weight": torch.ones(3, 3),
        "a.weight": torch.ones(3, 3),
    }
    with pytest.raises(CheckpointError, match="several orders"):
        infer_network(ambiguous)
    hostile = {f"{chr(97 + k)}.weight": torch.ones(3, 3) for k in range(25)} | {
        "z.weight": torch.ones(5, 7)
    }
    with pytest.raises(CheckpointError, match="26 different names are too many"):
        infer_network(hostile)  # at once, not after 25! tries


def test_counters_are_no_layers() -> None:
    plain = {"0.weight": torch.ones(4, 8), "1.weight": torch.ones(2, 4)}
    counted = {**plain, "n_averaged": torch.tensor(3), "position_ids": torch.arange(4)[None]}
    assert infer_network(counted) == infer_network(plain)
    for name, other in {"scale": torch.tensor(1.5), "2.weight": torch.ones(0, 2)}.items():
        with pytest.raises(CheckpointError, match=f"plain MLP, got {name}"):
            infer_network({**plain, name: other})
    with pytest.raises(CheckpointError, match="random features"):
        infer_network({"V": torch.ones(0, 3), "theta": torch.ones(1, 0)})


def test_what_is_no_mlp_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"conv\.weight \[8, 3, 3, 3\]"):
        infer_network({"conv.weight": torch.ones(8, 3, 3, 3), "fc.weight": torch.ones(2, 8)})
    with pytest.raises(CheckpointError, match="two weight matrices"):
        infer_network({"fc.weight": torch.ones(2, 8)})
    with pytest.raises(CheckpointError, match="no order"):
        infer_network({"0.weight": torch.ones(2, 8), "1.weight": torch.ones(2, 7)})
    with pytest.raises(CheckpointError, match="random features"):
        infer_network({"V": torch.ones(5, 3), "theta": torch.ones(1, 4)})


def test_random_features_are_recognised() -> None:
    network = infer_network(
        {"V": torch.ones(5, 3), "b": torch.ones(5), "theta": torch.ones(2, 5)}, "tanh"
    )
    assert network.trained == ("theta",)
    assert (network.d, network.c) == (3, 2)
    assert network.scale == pytest.approx(5**-0.5)


def test_metadata_round_trip_and_hostile_metadata() -> None:
    made = Architecture(activation="tanh", input_shape=(3, 8, 8))
    assert Architecture.from_metadata(made.to_metadata()) == made
    assert Architecture.from_metadata({}) == Architecture()
    for content in (
        "[",
        "[1]",
        '{"input_shape": "x"}',
        '{"input_shape": [0]}',
        '{"input_shape": [1e99]}',
        "[" * 100_000,
    ):
        with pytest.raises(CheckpointError):
            Architecture.from_metadata({METADATA_KEY: content})
    with pytest.raises(OptionError):
        Architecture.from_metadata({METADATA_KEY: json.dumps({"activation": "os.system"})})


def test_a_thousand_layers() -> None:
    state = {f"{k}.weight": torch.ones(1, 1) for k in range(1500)}
    assert infer_network(state).depth == 1500


def test_a_search_without_an_end_is_given_up() -> None:
    """Forty square matrices in four families, in any order, and one that fits none of them."""
    state = {f"{letter}{k}.weight": torch.ones(2, 2) for letter in "abcd" for k in range(10)}
    with pytest.raises(CheckpointError, match="too many orders"):
        infer_network({**state, "e.weight": torch.ones(7, 3)})
