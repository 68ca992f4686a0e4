"""The command line as people use it, in processes of its own where that matters."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from recollect.cli import main
from recollect.victim.architectures import convolutional

TRAIN = ["--n", "6", "--dim", "8", "--rank", "4", "--width", "120", "--tolerance", "1e-4"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert main(["train", "--dataset", "synthetic", *TRAIN, "--out", str(folder)]) == 0
    return folder


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    answer: dict[str, Any] = json.loads(out)
    return answer


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """One clear line on stderr, nothing on stdout, the exit code."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if "warning" not in line]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("recollect: ")
    return lines[0]


def test_the_whole_way(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {path.name for path in run.iterdir()} >= {
        "init.safetensors",
        "trained.safetensors",
        "truth.safetensors",
        "basis.safetensors",
        "train.json",
    }
    assert call(capsys, "inspect", run)["rank"] == 4
    two = call(capsys, "inspect", run / "init.safetensors", run / "trained.safetensors")
    assert two["rank"] == 4
    out = tmp_path / "found"
    for extra in (
        ["--space", "subspace"],
        ["--space", "full"],
        ["--basis", run / "basis.safetensors"],
        ["--parameters", "all"],
        ["--parameters", "layers.0", "--solver", "lm"],
        ["--parameters", "all", "--solver", "gd", "--endpoints", "both"],
        ["--parameters", "all", "--solver", "gd", "--gram", "cg"],
        ["--parameters", "last", "--solver", "gd", "--gram", "dense"],
        ["--norm", "free"],
        ["--norm", "2.5"],
        ["--rank", "3"],
        ["--solver", "gd", "--endpoints", "both"],
        ["--solver", "lm", "--endpoints", "initial"],
    ):
        answer = call(capsys, "reconstruct", run, "--n", 6, "--iterations", 5, "--out", out, *extra)
        assert answer["schema"] == 2
        assert answer["options"]["attack"] == ("projection" if "--solver" in extra else "exact")
        assert answer["options"]["solver"] == next(
            (one for one in ("gd", "lm") if one in extra), "auto"
        )
        assert answer["loss"] > 0
        assert answer["status"] in ("iterations", "stationary", "signs")
        assert (answer["confidence"] is None) == ("gd" in extra)
    scored = call(capsys, "evaluate", out, "--truth", run / "truth.safetensors")
    assert {"rho", "rho_up_to_sign", "errors", "recovered", "chance", "missed", "spurious"} <= set(
        scored
    )
    assert len(scored["errors"]) == 6
    assert call(capsys, "report", out, "--truth", run / "truth.safetensors")["report"].endswith(
        "report.html"
    )
    assert call(capsys, "report", out)
    found = load_file(out / "reconstruction.safetensors")
    assert found["inputs"].shape == (6, 8)
    assert found["coefficients"].shape == found["predictions"].shape == (6, 1)


def test_each_attack_has_two_names(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The solver names the attack, as it did when there was one."""
    few = ["--n", 6, "--iterations", 5]
    for names in (
        (["--attack", "exact"], ["--solver", "auto"], ["--attack", "auto"], []),
        (
            ["--attack", "projection"],
            ["--solver", "gd"],
            ["--attack", "projection", "--solver", "gd"],
        ),
        (["--attack", "projection", "--solver", "lm"], ["--solver", "lm"]),
    ):
        told = []
        for k, name in enumerate(names):
            out = tmp_path / str(k)
            answer = call(capsys, "reconstruct", run, *few, "--out", out, "--no-resume", *name)
            told.append(
                (answer["options"], load_file(out / "reconstruction.safetensors")["inputs"])
            )
        for options, inputs in told[1:]:
            assert options == told[0][0]
            assert torch.equal(inputs, told[0][1])


def test_a_record_is_run_again_to_the_same_bits(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, first, again = tmp_path / "run", tmp_path / "first", tmp_path / "again"
    shutil.copytree(run, copy)
    record = first / "reconstruct.json"
    for extra in (
        ["--rounds", 2, "--norm", "2.5", "--seed", 3],
        ["--solver", "gd", "--step", 3, "--endpoints", "both", "--parameters", "all"],
        ["--basis", copy / "basis.safetensors", "--tolerance", "1e-9"],
    ):
        told = call(
            capsys, "reconstruct", copy, "--n", 6, "--iterations", 5, "--out", first, *extra
        )
        repeated = call(capsys, "reconstruct", "--from", record, "--out", again)
        assert repeated["options"] == told["options"]
        assert repeated["tuning"] == told["tuning"]
        assert (again / "reconstruction.safetensors").read_bytes() == (
            first / "reconstruction.safetensors"
        ).read_bytes()
        shutil.rmtree(again)
    repeat = ["reconstruct", "--from", record, "--out", again]
    assert "leave it out" in fails(capsys, 2, *repeat, "--n", 3)
    assert "leave it out" in fails(capsys, 2, *repeat, copy)
    assert "--attack exact as in the record" in fails(capsys, 2, *repeat, "--attack", "projection")
    facts = json.loads(record.read_text())
    for change, words in (
        ({"schema": 1}, "schema 2"),
        ({"tuning": {**facts["tuning"], "patience": "long"}}, "the tuning of this version"),
        ({"tuning": {"luck": 1.0}}, "the tuning of this version"),
        ({"options": {**facts["options"], "attack": {}}}, "the name of an attack"),
        (
            {"options": {**facts["options"], "attack": "nowhere:Class"}},
            "names code, which runs only",
        ),
        ({"options": {**facts["options"], "checkpoints": 3}}, "the paths of checkpoints"),
        ({"files": [{"path": str(copy / "init.safetensors"), "sha256": "0"}]}, "init.safetensors"),
    ):
        record.write_text(json.dumps({**facts, **change}))
        assert words in fails(capsys, 2, *repeat)
        assert not again.exists()


def test_repeating_with_other_threads_warns(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--n", 6, "--solver", "gd", "--iterations", 5]
    told = call(capsys, "reconstruct", run, *few, "--out", tmp_path / "first")
    assert told["threads"] == 1
    repeat = ["reconstruct", "--from", str(tmp_path / "first" / "reconstruct.json"), "--out"]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        capsys.readouterr()
        assert main([*repeat, str(tmp_path / str(threads))]) == 0
        warned = "set OMP_NUM_THREADS=1 for the same bits" in capsys.readouterr().err
        assert warned == (threads == 2)


OWN = """
from dataclasses import dataclass

import torch

import recollect as rc


@dataclass(frozen=True)
class Sure:
    cut: bool = False
    tested: bool = True

    @property
    def needs(self):
        return rc.Needs()

    def cost(self, victim, n, machine):
        return rc.Cost()

    def calibrated(self, victim):
        return self.tested

    def run(self, victim, n, context):
        return rc.Reconstruction(
            inputs=torch.eye(n, victim.d, dtype=torch.float64),
            loss=0.5,
            status=rc.Status.ITERATIONS,
            confidence=torch.ones(n, dtype=torch.float64),
            singular_values=torch.ones(3, dtype=torch.float64),
            withheld=(rc.Withheld((0, 1), "somebody is in doubt"),) if self.cut else (),
        )
"""


def test_points_that_must_not_be_counted_are_not(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sure.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    attack = ["reconstruct", str(run), "--n", "6", "--attack", "sure:Sure", "--out", "found"]
    assert main(attack) == 0
    assert "The weights hold every point" in capsys.readouterr().out
    assert main([*attack, "--set", "cut=true"]) == 0
    said = capsys.readouterr().out
    assert "hold every point" not in said
    assert "2 of 6 points must not be taken for recovered because somebody is in doubt." in said
    assert main(["report", "found"]) == 0
    said = capsys.readouterr().out
    assert "hold 4 of them firmly. 2 are not counted because somebody is in doubt." in said
    assert main([*attack, "--set", "tested=false"]) == 0
    said = capsys.readouterr().out
    assert "hold every point" not in said
    assert "6 of 6 points must not be taken for recovered because confidence was not" in said


def test_people_get_words(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "equations" in shown
    assert "rank" in shown
    assert (
        main(
            ["reconstruct", str(run), "--n", "6", "--iterations", "5", "--out", str(tmp_path / "f")]
        )
        == 0
    )
    assert main(["evaluate", str(tmp_path / "f"), "--truth", str(run / "truth.safetensors")]) == 0
    shown = capsys.readouterr().out
    assert "chance" in shown
    assert "missed 0, spurious 0" in shown


@pytest.mark.parametrize(
    "options",
    [
        ["--victim", "rf"],
        ["--victim", "rf", "--bias", "--activation", "tanh"],
        ["--depth", "3", "--bias", "--activation", "gelu", "--init", "torch"],
        ["--loss", "mse-sum", "--dtype", "float64"],
        ["--learning-rate", "0.01"],
    ],
)
def test_every_kind_of_victim(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = call(capsys, "train", "--dataset", "synthetic", *TRAIN, "--out", tmp_path, *options)
    assert made["mse"] <= 1e-4
    looked = call(capsys, "inspect", tmp_path)
    assert looked["norms_identifiable"] == ("--bias" in options)
    found = call(
        capsys,
        "reconstruct",
        tmp_path,
        "--n",
        6,
        "--space",
        "full",
        "--iterations",
        3,
        "--out",
        tmp_path / "f",
    )
    assert found["norms_identifiable"] == ("--bias" in options)


def test_the_attack_reads_the_two_checkpoints_and_nothing_else(run: Path, tmp_path: Path) -> None:
    """Beside the truth, and beside pipes that nobody writes to: who opens one waits for ever."""
    hidden, outputs = ("truth.safetensors", "basis.safetensors", "train.json"), []
    for name in ("with", "without"):
        folder = tmp_path / name
        shutil.copytree(run, folder)
        if name == "without":
            for file in hidden:
                (folder / file).unlink()
                os.mkfifo(folder / file)
        arguments = [
            "reconstruct",
            str(folder),
            "--n",
            "6",
            "--iterations",
            "30",
            "--out",
            str(folder / "out"),
        ]
        subprocess.run(
            [sys.executable, "-m", "recollect", *arguments],
            capture_output=True,
            check=True,
            timeout=120,
        )
        outputs.append((folder / "out" / "reconstruction.safetensors").read_bytes())
    assert outputs[0] == outputs[1]
    reader = [sys.executable, "-c", f"open({str(tmp_path / 'without' / hidden[0])!r}).read()"]
    with pytest.raises(subprocess.TimeoutExpired):  # the pipes do hold a reader
        subprocess.run(reader, timeout=3, check=False)


def test_bad_checkpoints(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    init, trained = run / "init.safetensors", run / "trained.safetensors"

    def attack(*paths: Path) -> str:
        line = fails(capsys, 2, "reconstruct", *paths, "--n", 3, "--out", out)
        assert not out.exists()
        return line

    weights = load_file(trained)
    save_file({**weights, "layers.0.weight": torch.ones(7, 8)}, tmp_path / "other.safetensors")
    assert "layers.0.weight [120, 8] before and [7, 8] after" in attack(
        init, tmp_path / "other.safetensors"
    )
    save_file(
        {**weights, "layers.0.weight": weights["layers.0.weight"] * torch.nan},
        tmp_path / "nan.safetensors",
    )
    assert "NaN" in attack(init, tmp_path / "nan.safetensors")
    whole = trained.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-5])
    attack(init, tmp_path / "cut.safetensors")
    (tmp_path / "header.safetensors").write_bytes(struct.pack("<Q", 2**63) + whole[8:])
    attack(init, tmp_path / "header.safetensors")
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(os.getcwd))
    assert "not run" in attack(init, tmp_path / "evil.pt")
    assert "same weights" in attack(init, init)
    assert "nothing there" in attack(init, tmp_path / "none.safetensors")
    assert "two checkpoints" in attack(init)
    assert "two checkpoints" in attack(tmp_path / "no-folder")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reconstruct", "RUN", "--n", "121", "--out", "OUT"], "120 equations"),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--speed", "9"], "--speed"),
        (["reconstruct", "RUN", "--n", "many", "--out", "OUT"], "--n"),
        (["reconstruct", "RUN", "--n", "0", "--out", "OUT"], "--n"),
        (["reconstruct", "RUN", "--n", "10.7", "--out", "OUT"], "10.7"),
        (
            ["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--solver", "gd", "--step", "nan"],
            "--step",
        ),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--step", "20"], "--solver gd"),
        (["reconstruct", "RUN", "--n", "auto", "--out", "OUT", "--solver", "gd"], "--n"),
        (
            ["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--gram", "cg"],
            "expected --gram with --attack projection, got it with --attack exact",
        ),
        (["reconstruct", "RUN", "--n", "auto", "--out", "OUT", "--parameters", "all"], "--n"),
        (
            ["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--dtype", "float32"],
            "--attack projection",
        ),
        (
            [
                "reconstruct",
                "RUN",
                "--n",
                "3",
                "--out",
                "OUT",
                "--solver",
                "gd",
                "--endpoints",
                "both",
                "--gram",
                "cg",
            ],
            "--endpoints",
        ),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--iterations", "-4"], "--iterations"),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--rank", "99"], "--rank"),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--norm", "0"], "--norm"),
        (
            ["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--parameters", "first"],
            "layers.0.weight",
        ),
        (
            ["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--basis", "RUN/truth.safetensors"],
            "U (d×r)",
        ),
        (
            [
                "reconstruct",
                "RUN",
                "--n",
                "3",
                "--out",
                "OUT",
                "--basis",
                "RUN/basis.safetensors",
                "--rank",
                "2",
            ],
            "expected --rank with --space subspace, got it with --basis",
        ),
        (
            ["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--space", "full", "--rank", "2"],
            "--rank",
        ),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--seed", "-1"], "--seed"),
        (["reconstruct", "RUN", "--n", "3", "--out", "OUT", "--activation", "swish"], "relu"),
        (["reconstruct", "RUN", "--n", "3"], "--out"),
        (["train", "--dataset", "nowhere", "--n", "3", "--width", "9", "--out", "OUT"], "nowhere"),
        (["train", "--dataset", "synthetic", "--n", "3", "--width", "-9", "--out", "OUT"], "width"),
        (
            [
                "train",
                "--dataset",
                "synthetic",
                "--n",
                "3",
                "--width",
                "9",
                "--depth",
                "1",
                "--out",
                "OUT",
            ],
            "--depth",
        ),
        (
            [
                "train",
                "--dataset",
                "synthetic",
                "--n",
                "3",
                "--width",
                "9",
                "--learning-rate",
                "-1",
                "--out",
                "OUT",
            ],
            "--learning-rate",
        ),
        (
            [
                "train",
                "--dataset",
                "synthetic",
                "--n",
                "3",
                "--width",
                "9",
                "--victim",
                "rf",
                "--tolerance",
                "nan",
                "--out",
                "OUT",
            ],
            "--tolerance",
        ),
        (
            [
                "train",
                "--dataset",
                "synthetic",
                "--n",
                "3",
                "--width",
                "9",
                "--activation",
                "x",
                "--out",
                "OUT",
            ],
            "relu",
        ),
        (["evaluate", "OUT", "--truth", "RUN/truth.safetensors"], "reconstruct.json"),
        (["report", "OUT"], "reconstruct.json"),
        (["inspect"], "two checkpoints"),
        (["dance"], "dance"),
    ],
)
def test_bad_usage(
    arguments: list[str], words: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    filled = [argument.replace("RUN", str(run)).replace("OUT", str(out)) for argument in arguments]
    assert words in fails(capsys, 2, *filled)
    assert not out.exists()


def test_runs_that_fail_exit_with_1_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    base = ["train", "--dataset", "synthetic", *TRAIN, "--out", str(out)]
    assert "--max-steps" in fails(capsys, 1, *base, "--max-steps", 10)
    assert "stability limit" in fails(capsys, 1, *base, "--learning-rate", 50)
    assert not out.exists()


def test_too_few_equations_is_a_warning(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert (
        main(
            [
                "reconstruct",
                str(run),
                "--n",
                "60",
                "--space",
                "full",
                "--iterations",
                "2",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert (
        "recollect: warning: 60 effective equations for 420 coordinates" in capsys.readouterr().err
    )


def test_ctrl_c_keeps_the_best_and_running_again_resumes(run: Path, tmp_path: Path) -> None:
    cut_short = (
        "import os, signal, sys\n"
        "from recollect.cli import main\n"
        "from recollect.solve.gradient_descent import GradientDescent\n"
        # Whoever starts the tests in the background has told them to ignore Ctrl-C.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "step, steps = GradientDescent.step, 0\n"
        "def counted(*arguments):\n"
        "    global steps\n"
        "    steps += 1\n"
        "    if steps == 137: os.kill(os.getpid(), getattr(signal, sys.argv[1]))\n"
        "    return step(*arguments)\n"
        "GradientDescent.step = counted\n"
        "sys.exit(main(sys.argv[2:]))"
    )
    arguments = [
        "reconstruct",
        str(run),
        "--n",
        "6",
        "--solver",
        "gd",
        "--iterations",
        "400",
        "--json",
        "--out",
    ]
    codes = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
    for kind, code in codes.items():
        out = str(tmp_path / kind)
        stopped = subprocess.run(
            [sys.executable, "-c", cut_short, kind, *arguments, out],
            capture_output=True,
            text=True,
            check=False,
        )
        assert stopped.returncode == code, stopped.stderr
        answer = json.loads(stopped.stdout)
        assert answer["status"] == "interrupted"
        assert answer["stages"][0]["iterations"] == 136
        again = subprocess.run(
            [sys.executable, "-m", "recollect", *arguments, out],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "went on from iteration 136" in again.stderr
        assert json.loads(again.stdout)["status"] == "iterations"
    subprocess.run(
        [sys.executable, "-m", "recollect", *arguments, str(tmp_path / "straight")],
        capture_output=True,
        check=True,
    )
    straight = load_file(tmp_path / "straight" / "reconstruction.safetensors")
    for kind in codes:
        cut = load_file(tmp_path / kind / "reconstruction.safetensors")
        assert all(torch.equal(cut[name], straight[name]) for name in straight)


def test_a_run_that_diverges_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for iterations in (20, 200):
        capsys.readouterr()
        out = tmp_path / str(iterations)
        assert (
            main(
                [
                    "reconstruct",
                    str(run),
                    "--n",
                    "6",
                    "--solver",
                    "gd",
                    "--step",
                    "1e300",
                    "--iterations",
                    str(iterations),
                    "--out",
                    str(out),
                ]
            )
            == 1
        )
        assert "use a smaller --step" in capsys.readouterr().err
        assert torch.isfinite(load_file(out / "reconstruction.safetensors")["inputs"]).all()


def test_inputs_are_never_overwritten(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init, trained = tmp_path / "init.safetensors", tmp_path / "resume.safetensors"
    shutil.copy(run / "init.safetensors", init)
    shutil.copy(run / "trained.safetensors", trained)
    before = trained.read_bytes()
    assert "--out elsewhere" in fails(
        capsys, 2, "reconstruct", init, trained, "--n", 3, "--out", tmp_path
    )
    assert trained.read_bytes() == before


def test_checkpoints_of_two_runs_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["train", "--dataset", "synthetic", *TRAIN, "--seed", "1", "--out", str(tmp_path)])
        == 0
    )
    assert "one training run" in fails(
        capsys, 2, "inspect", run / "init.safetensors", tmp_path / "trained.safetensors"
    )


def test_names_are_shown_and_not_obeyed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("init", "trained"):
        weights = load_file(run / f"{file}.safetensors")
        save_file(
            {name.replace("layers", "[/x][red]layers"): value for name, value in weights.items()},
            tmp_path / f"{file}.safetensors",
        )
    assert main(["inspect", str(tmp_path)]) == 0
    assert "[/x][red]layers" in capsys.readouterr().out
    for name in ("a\nb.weight", "\x1b[2J.weight", "9" * 5000 + ".weight"):
        save_file(
            {name: torch.ones(3, 2), "1.weight": torch.ones(2, 3)}, tmp_path / "bad.safetensors"
        )
        assert "readable" in fails(
            capsys, 2, "inspect", tmp_path / "bad.safetensors", tmp_path / "bad.safetensors"
        )


@pytest.mark.parametrize(
    "option",
    [
        ["--n", "1e20"],
        ["--iterations", "100000000000000000000"],
        ["--out", "x" * 400],
        ["--basis", "y" * 400],
    ],
)
def test_enormous_values(
    option: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"--n": "3", "--out": str(tmp_path / "o"), option[0]: option[1]}
    fails(capsys, 2, "reconstruct", run, *[word for pair in arguments.items() for word in pair])


def test_a_terminal_without_greek(run: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for extra in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "recollect", "inspect", str(run), *extra],
            env=environment,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_an_error_is_one_line_whatever_is_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fails(
        capsys,
        2,
        "train",
        "--dataset",
        "a\nb\x1b[2J.npz",
        "--n",
        3,
        "--width",
        9,
        "--out",
        tmp_path / "out",
    )


def test_the_disk_is_asked_before_the_work(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for command in (["reconstruct", run, "--n", 6], ["train", "--dataset", "synthetic", *TRAIN]):
        assert "--out" in fails(capsys, 2, *command, "--out", tmp_path / "file")


@pytest.mark.parametrize(
    "command", ["demo", "train", "inspect", "reconstruct", "evaluate", "report"]
)
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Example: recollect {command}" in shown
    assert "--json" in shown


FACTORY = """
from recollect.victim.architectures import convolutional

def make():
    return convolutional(channels=1, size=4, width=3, c=2)

def broken():
    raise RuntimeError("out of paint")

number = lambda: 7
"""


def test_any_model_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    (tmp_path / "torn.py").write_text("def make(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    model = convolutional(channels=1, size=4, width=3, c=2)
    before = {name: value.detach().clone() for name, value in model.state_dict().items()}
    save_file(before, tmp_path / "a.safetensors")
    save_file({name: value + 0.01 for name, value in before.items()}, tmp_path / "b.safetensors")
    given = ["a.safetensors", "b.safetensors", "--model", "mine:make", "--input-shape", "1,4,4"]
    assert call(capsys, "inspect", *given)["rank"] == 16
    reconstruct = [
        "reconstruct",
        *given,
        "--n",
        1,
        "--space",
        "full",
        "--parameters",
        "all",
        "--iterations",
        3,
        "--rounds",
        1,
    ]
    answer = call(capsys, *reconstruct, "--out", tmp_path / "found")
    assert answer["loss"] >= 0
    assert load_file(tmp_path / "found" / "reconstruction.safetensors")["inputs"].shape == (1, 16)
    for wrong, words in {
        "mine": "package.module:name",
        "mine:nothing": "nothing",
        "nowhere:make": "nowhere",
        "mine:broken": "out of paint",
        "mine:number": "int",
        "torn:make": "SyntaxError",
        "recollect.victim.architectures:residual": "in the model alone",
    }.items():
        assert main(["inspect", *given[:2], "--model", wrong, "--input-shape", "1,4,4"]) == 2
        assert words in capsys.readouterr().err
    assert main(["inspect", *given[:4], "--input-shape", "1,x"]) == 2
    assert "3,32,32" in capsys.readouterr().err
    assert main(["inspect", *given[:4]]) == 2
    assert "--input-shape" in capsys.readouterr().err
    assert main(["inspect", *given[:4], "--input-shape", "3,8,8"]) == 2
    assert "expected a module that takes inputs of shape" in capsys.readouterr().err
    assert main(["inspect", *given[:2], "--input-shape", "1,4,4"]) == 2
    assert "--model" in capsys.readouterr().err
