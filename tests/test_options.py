"""One schema for options: the command line, sweep plans and JSON records say the same as the
dataclasses."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import recollect as rc
from recollect.attacks.options import (
    ATTACKS,
    Auto,
    attack_options,
    attack_words,
    build_attack,
)
from recollect.auditing.options import GateOptions
from recollect.cli import main
from recollect.cli.common import app
from recollect.cli.reconstruct import RunOptions
from recollect.errors import OptionError
from recollect.objective.endpoints import Endpoints
from recollect.options import AUTO, Option, build, from_word, parsed, schema, words
from recollect.study.job import StudyOptions, column_kinds, study_schema
from recollect.truth.recipe import Recipe
from recollect.victim.activation_names import ACTIVATIONS
from recollect.victim.activations import activation
from recollect.victim.options import NetworkOptions

CLASSES = (Recipe, StudyOptions, GateOptions, NetworkOptions, RunOptions, *ATTACKS.values())


def every_option() -> dict[str, Option]:
    return {f"{cls.__name__}.{name}": one for cls in CLASSES for name, one in schema(cls).items()}


@pytest.mark.parametrize("name", every_option())
def test_every_option_has_a_sentence_and_a_default_that_passes_its_own_check(name: str) -> None:
    option = every_option()[name]
    assert option.rule.help.endswith("."), option.rule.help
    assert option.rule.help[0].isupper() or option.rule.help[0].islower()
    if not option.required and option.default not in (None, AUTO):
        assert words_of(option, from_word(option, option.default)) == option.default


def words_of(option: Option, value: Any) -> Any:
    return value.value if option.rule.enum is not None else value


COMMANDS = {
    "train": (Recipe,),
    "inspect": (NetworkOptions,),
    "audit": (GateOptions, NetworkOptions),
    "reconstruct": (RunOptions, NetworkOptions, *ATTACKS.values()),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_a_flag_with_its_own_help(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    main([command, "--help"])
    page = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for cls in COMMANDS[command]:
        for option in schema(cls).values():
            assert f"{option.flag} " in page
            assert option.rule.help.replace("`", "")[:60] in page, option.flag


def test_every_option_of_an_attack_is_a_column_of_a_sweep_and_a_key_of_a_record() -> None:
    columns = column_kinds()
    for option in attack_options().values():
        if option.name not in ("space", "rank", "basis"):  # `method` and `subspace_rank` in a sweep
            assert option.column in columns
    for option in schema(Recipe).values():
        assert option.column in columns
    assert len(study_schema()) == len(set(study_schema()))
    for name, cls in ATTACKS.items():
        record = attack_words(cls())
        assert record["attack"] == name
        shown = {one.name for one in schema(cls).values() if one.name in record}
        assert set(record) - {"attack", "solver"} <= shown | {"solver"}
        json.dumps(record)


attacks = st.one_of(
    st.builds(
        rc.Exact,
        space=st.one_of(
            st.builds(rc.FullSpace),
            st.builds(rc.Subspace, rank=st.one_of(st.none(), st.integers(1, 99))),
        ),
        parameters=st.sampled_from(["last", "all", "layers.0"]),
        endpoints=st.one_of(st.none(), st.sampled_from(Endpoints)),
        norm=st.one_of(st.none(), st.sampled_from(["sqrt-d", "free"]), st.floats(0.1, 10)),
        restarts=st.integers(1, 5),
        iterations=st.integers(1, 500),
        rounds=st.integers(0, 9),
    ),
    st.builds(
        rc.Projection,
        space=st.one_of(st.builds(rc.FullSpace), st.builds(rc.Subspace)),
        solver=st.one_of(
            st.builds(
                rc.GradientDescent,
                step_size=st.one_of(st.none(), st.floats(0.1, 100)),
                momentum=st.floats(0, 0.99),
                iterations=st.integers(1, 10_000),
            ),
            st.builds(rc.LevenbergMarquardt, iterations=st.integers(1, 300)),
        ),
        tolerance=st.floats(0, 1e-3),
        dtype=st.sampled_from([None, "float64"]),
    ),
)


@given(attack=attacks)
def test_an_attack_comes_back_from_its_record(attack: rc.Exact | rc.Projection) -> None:
    assert build_attack(json.loads(json.dumps(attack_words(attack)))) == attack


@given(
    n=st.integers(1, 99),
    bias=st.booleans(),
    rate=st.one_of(st.none(), st.floats(1e-6, 1)),
    phi=st.sampled_from(ACTIVATIONS),
)
def test_a_recipe_comes_back_from_its_record(
    n: int, bias: bool, rate: float | None, phi: str
) -> None:
    recipe = Recipe(
        dataset="synthetic", n=n, width=9, bias=bias, learning_rate=rate, activation=phi
    )
    assert build(Recipe, json.loads(json.dumps(words(recipe)))) == recipe


@pytest.mark.parametrize(
    ("given_words", "message"),
    [
        ({"solver": "lm", "step": 2.0}, "--step with --solver gd"),
        ({"solver": "gd", "damping": 2.0}, "--damping with --solver lm"),
        ({"space": "full", "rank": 3}, "--rank with --space subspace"),
        ({"basis": "U.safetensors", "rank": 3}, "--rank with --space subspace"),
        ({"step": 2.0}, "options of --attack exact"),
        ({"attack": "exact", "gram": "cg"}, "options of --attack exact"),
        ({"attack": "projection", "solver": "auto"}, "--solver gd or lm"),
        ({"restarts": 0}, "--restarts between 1"),
        ({"restarts": 1.5}, "a whole number"),
        ({"restarts": True}, "a whole number"),
        ({"iterations": 10**13}, "ordinary size"),
        ({"solver": "gd", "momentum": 1.0}, "--momentum"),
        ({"solver": "gd", "step": float("nan")}, "--step"),
        ({"endpoints": "middle"}, "--endpoints auto, final"),
        ({"norm": -1.0}, "--norm"),
        ({"norm": "big"}, "--norm"),
        ({"attack": "nothing"}, "package.module:name"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    given_words: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        build_attack(given_words)


def test_a_basis_is_chosen_by_giving_it() -> None:
    attack = build_attack({"basis": "U.safetensors", "solver": "gd"})
    assert isinstance(attack, rc.Projection)
    assert isinstance(attack.space, rc.Basis)
    assert attack_words(attack)["basis"] == "U.safetensors"


def test_words_of_a_command_line() -> None:
    rank = attack_options()["rank"]
    assert parsed(rank, "auto") == AUTO
    assert parsed(rank, "7") == 7
    with pytest.raises(OptionError, match="a whole number"):
        parsed(rank, "7.5")


def test_torch_dtypes_are_taken_as_their_names() -> None:
    import torch

    assert rc.Projection(dtype=torch.float64) == rc.Projection(dtype="float64")  # type: ignore[arg-type]


def test_the_former_name_of_the_exact_attack_still_works() -> None:
    from cases import interpolated

    victim, data = interpolated()
    old = rc.Projection(space=rc.Basis(U=data.basis), solver=Auto(iterations=50))  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="Exact"):
        found = rc.reconstruct(victim, 6, old)
    same = rc.reconstruct(victim, 6, rc.Exact(space=rc.Basis(U=data.basis), iterations=50))
    assert (found.inputs == same.inputs).all()


def test_names_of_activations() -> None:
    for name in ACTIVATIONS:
        assert activation(name).name == name
    with pytest.raises(OptionError) as error:
        activation("none")
    assert all(name in str(error.value) for name in ACTIVATIONS)


def test_help_and_options_do_not_wait_for_torch() -> None:
    commands = [name for name in app if not name.startswith("-")]
    assert {"train", "audit", "reconstruct", "sweep", "bounds"} <= set(commands)
    program = f"""
import sys
from recollect.cli import main
for command in {commands}:
    main([command, "--help"])
assert "torch" not in sys.modules, "torch was imported"
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_plain_field_of_an_attack_is_an_option() -> None:
    @dataclasses.dataclass(frozen=True)
    class Plain:
        steps: int = 3
        rate: float | None = None
        names: tuple[str, ...] = ()  # not of a simple type: no option

    assert set(schema(Plain)) == {"steps", "rate"}
    assert build(Plain, {"steps": 5}) == Plain(steps=5)
    with pytest.raises(OptionError, match="--steps"):
        build(Plain, {"step": 5})


def test_paths_are_kept_as_text(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Places:
        where: Path = Path("a")

    assert words(Places(where=tmp_path)) == {"where": str(tmp_path)}
    assert build(Places, {"where": "b"}) == Places(where=Path("b"))
