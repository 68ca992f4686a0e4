"""`recollect reconstruct`: runs an attack that sees the two checkpoints and nothing else."""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.options import (
    ATTACKS,
    Exact,
    attack_name,
    attack_options,
    build_attack,
)
from recollect.auditing.options import ComputeOptions
from recollect.cli.common import (
    Flatten,
    Json,
    announce_svd,
    app,
    checkpoints,
    load_victim,
    network_options,
)
from recollect.cli.console import Terminal
from recollect.cli.flags import flags, given
from recollect.cli.outputs import keep_audit, keep_inputs
from recollect.errors import (
    FileError,
    OptionError,
    RecollectError,
    RecollectWarning,
    RunError,
    VictimError,
    one_line,
)
from recollect.options import AUTO, build, home, option, schema, words
from recollect.victim.options import NetworkOptions

if TYPE_CHECKING:
    from recollect.attacks.base import Attack
    from recollect.attacks.result import Reconstruction
    from recollect.examine.history import History

UNDO, KEEP = "undo", "keep"
"""What `--weight-decay` may say."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(ComputeOptions):
    """The options of every run: the number of points, the seed, the device, and the attack."""

    n: int | None = option(
        help="How many points to look for; auto takes it from the residual (with --attack exact).",
        least=1,
        most=10**8,
        hint="ask for another number of points",
    )
    attack: str | None = option(
        None,
        help="exact: Levenberg–Marquardt in stages. projection: the paper's attack. Or "
        "package.module:Class, an attack "
        "of your own. auto: exact, or projection where --solver gd or lm is given.",
    )
    weight_decay: str = option(
        UNDO,
        help="undo: weight decay is measured where the first layer's change holds nothing of the "
        "data, and undone. keep: the change is explained as it is.",
        choices=(UNDO, KEEP),
    )


def _attack_flags() -> dict[str, Any]:
    """The options of all built-in attacks. `--solver` also takes auto, which stands for the exact
    attack."""
    found = attack_options()
    solver = found["solver"]
    return {**found, "solver": replace(solver, nullable=True, default=AUTO)}


Flags = flags("Flags", RunOptions, _attack_flags(), NetworkOptions)


@app.command
def reconstruct(
    *paths: Path,
    out: Path,
    flags: Annotated[Flags, Flatten] = Flags(),  # type: ignore[valid-type]
    set: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    resume: bool = True,
    json: Json = False,
) -> int:
    """Find the inputs whose gradients span the change of the weights. Opens the two checkpoints and
    nothing else.

    Example: recollect reconstruct run --n 20 --out run/found
    or: recollect reconstruct INIT TRAINED --n 20 --out found

    Parameters
    ----------
    paths
        RUN (a folder that `train` made), or INIT TRAINED (two checkpoints).
    out
        Folder for reconstruction.safetensors, reconstruct.json and a checkpoint to resume from.
    set
        NAME=VALUE: an option of an attack of your own. May be given several times.
    from_
        A reconstruct.json: run the same again, to the same bits on the same machine with as many
        threads. Code that it names (--model, --attack) runs only if you name it again.
    resume
        Go on from the checkpoint in --out if it is of the same run.
    """
    from recollect.attacks.reconstruct import reconstruct as run_attack
    from recollect.examine.history import history, undecayed
    from recollect.records import FACTS, RESUME, TENSORS, ResumeFile, record_of, write_record
    from recollect.solve.loop import Status
    from recollect.system.device import choose_device, is_out_of_memory
    from recollect.system.files import check_name, check_writable

    terminal = Terminal(json=json)
    said = given(flags)
    tuning: Tuning | None = None
    if from_ is not None:
        clash = [name for name in said if name not in ("model", "attack")]
        clash += [str(path) for path in paths]
        if clash:
            raise OptionError(
                f"expected --from with --out, --model and --attack alone, got {clash[0]} as well; "
                "the record decides: "
                "leave it out"
            )
        paths, said, tuning = repeated(from_, said)
    options: RunOptions = build(
        RunOptions, {k: v for k, v in said.items() if k in schema(RunOptions)}
    )
    network = network_options({k: v for k, v in said.items() if k in schema(NetworkOptions)})
    others = {*schema(RunOptions), *schema(NetworkOptions)} - {"attack"}
    attack = named_attack({k: v for k, v in said.items() if k not in others}, set or [])
    if tuning is not None and isinstance(attack, Exact):
        attack = replace(attack, tuning=tuning)
    where = choose_device(options.device)
    for path in paths:
        check_name(path)
    files, basis = checkpoints(paths), said.get("basis")
    inputs = [*files, from_, None if basis is None else Path(basis)]
    keep_inputs(inputs, [out / name for name in (TENSORS, FACTS, RESUME)])
    keep_audit(out)
    check_writable(out)
    victim = load_victim(paths, network)
    past = history(victim, optimizer=network.optimizer)
    undone = past.decay if options.weight_decay == UNDO else 0.0
    victim = undecayed(victim, undone) if undone else victim
    announce_svd(terminal, victim)
    try:
        found = run_attack(
            victim,
            options.n,
            attack,
            seed=options.seed,
            device=where,
            progress=terminal.progress,
            resume=ResumeFile(out, resume=resume),
        )
    except RecollectError:
        raise
    except Exception as error:
        if network.model is None or is_out_of_memory(error):
            raise
        raise VictimError(
            f"expected a model that can be differentiated by each input, got {one_line(error)} "
            f"in {network.model}; write its forward with torch operations on the whole batch"
        ) from error
    found = _with_history(found, past, undone)
    record = record_of(
        found,
        victim,
        attack=attack,
        options={
            "checkpoints": [str(path) for path in paths],
            **words(options),
            **words(network),
            "device": where.type,
        },
        files=[*files, *([] if basis is None else [basis])],
    )
    facts = write_record(out, record)
    _tell(terminal, found, out)
    terminal.answer({**facts, "out": str(out)})
    if found.status in (Status.SINGULAR, Status.DIVERGED):
        raise RunError(f"{found.status.value} (the best so far is in {out})")
    return 130 if found.status is Status.INTERRUPTED else 0


def _with_history(found: Reconstruction, past: History, undone: float) -> Reconstruction:
    """The result with what the history of the change says about it."""
    from recollect.attacks.result import Withheld

    notes = [f"weight decay of {undone:.3g} was measured and undone"] if undone else []
    notes += [str(finding) for finding in past.findings if finding.misfit]
    every = tuple(range(len(found.inputs)))
    withheld = [] if found.confidence is None else [Withheld(every, why) for why in past.withhold]
    return replace(found, notes=(*found.notes, *notes), withheld=(*found.withheld, *withheld))


def named_attack(said: Mapping[str, Any], more: list[str]) -> Attack:
    """The attack that the flags name. `more`: NAME=VALUE for an attack that is not built in."""
    said = {key: value for key, value in said.items() if (key, value) != ("attack", AUTO)}
    name = attack_name(said)
    if name in ATTACKS:
        if more:
            raise OptionError(
                f"expected --set with an attack of your own, got it with --attack {name}; use the "
                "flags of its options"
            )
        for other in said:
            if other not in (*schema(ATTACKS[name]), "attack", "solver"):
                chooser, choices = home(other, "attack", ATTACKS)
                raise OptionError(
                    f"expected {_attack_flags()[other].flag} with --{chooser} "
                    f"{' or '.join(choices)}, got it with "
                    f"--attack {name}; leave one of them out"
                )
        return build_attack({**said, "attack": name})
    return build_attack({**said, "attack": name, **dict(map(_assignment, more))})


def _assignment(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE. The value is read as TOML if possible, and otherwise as plain text."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise OptionError(f"expected --set NAME=VALUE, got {text!r}; for example --set steps=50")
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value


def repeated(
    record: Path, said: Mapping[str, Any]
) -> tuple[tuple[Path, ...], dict[str, Any], Tuning | None]:
    """Checkpoints, options and tuning of a record, after a check that its files are unchanged.

    A record is data: code that it names is run only if the user names it again.
    """
    from recollect.records import file_hash
    from recollect.system.files import read_json

    facts = read_json(record)
    options, files = facts.get("options"), facts.get("files")
    if facts.get("schema") != 2 or not isinstance(options, dict) or not isinstance(files, list):
        raise FileError(
            f"expected a reconstruct.json of schema 2 at {record}, got another; run `recollect "
            "reconstruct` with the "
            "same options instead"
        )
    if "audit" in options:
        raise FileError(
            f"expected a record of `recollect reconstruct` at {record}, got one of an audit; run "
            "the audit again"
        )
    for name in ("model", "attack"):
        wanted = options.get(name)
        code = isinstance(wanted, str) and wanted not in (*ATTACKS, "auto")
        if code and said.get(name) != wanted:
            raise OptionError(
                f"expected --{name} {wanted} to be given again, got {said.get(name) or 'nothing'}; "
                "the record names "
                "code, which runs only if you name it too"
            )
        if not code and name in said and said[name] != wanted:
            raise OptionError(
                f"expected --{name} {wanted} as in the record, got {said[name]}; leave it out"
            )
    for file in files:
        path, sha = (
            (file.get("path"), file.get("sha256")) if isinstance(file, dict) else (None, None)
        )
        if not isinstance(path, str) or file_hash(Path(path)) != sha:
            raise FileError(
                f"expected the file {path} that this run was made from, got another or none; put "
                "it back, or run "
                "`recollect reconstruct` on what is there"
            )
    paths = options.get("checkpoints")
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise FileError(f"expected the paths of checkpoints in {record}, got none; run it by hand")
    known = {*schema(RunOptions), *schema(NetworkOptions), *_attack_flags()}
    if not isinstance(options.get("attack"), str):
        raise FileError(f"expected the name of an attack in {record}, got none; run it by hand")
    external = options["attack"] not in ATTACKS
    kept = {
        name: value
        for name, value in options.items()
        if name != "checkpoints" and (name in known or external)
    }
    kept.setdefault("weight_decay", KEEP)  # records from before the option did not undo it
    _warn_of_threads(facts.get("threads"))
    tuning = facts.get("tuning")
    return tuple(map(Path, paths)), kept, _tuning(tuning) if isinstance(tuning, dict) else None


def _warn_of_threads(recorded: object) -> None:
    """Warn if torch uses another number of threads here than in the recorded run."""
    import torch

    now = torch.get_num_threads()
    if isinstance(recorded, int) and recorded != now:
        warnings.warn(
            f"expected as many threads as in the recorded run, {recorded}, got {now}, and the "
            f"result may differ; set OMP_NUM_THREADS={recorded} for the same bits",
            RecollectWarning,
            stacklevel=2,
        )


def _tuning(facts: Mapping[str, Any]) -> Tuning:
    """The tuning of a record, after a check of its names and of the types of its values."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()
    }
    known = {one.name: one.default for one in fields(Tuning)}
    fits = set(values) <= set(known) and all(_alike(v, known[name]) for name, v in values.items())
    if not fits:
        raise FileError(
            "expected the tuning of this version's exact attack in the record, got another; run it "
            "by hand"
        )
    return Tuning(**values)


def _alike(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(_alike(one, 0.0) for one in value) and bool(value)
    number = isinstance(value, int if isinstance(default, int) else (int, float))
    return number and not isinstance(value, bool) and abs(value) < 1e300


def _tell(terminal: Terminal, found: Reconstruction, out: Path) -> None:
    if found.resumed_at:
        terminal.note(f"went on from iteration {found.resumed_at} of an earlier run")
    seconds = sum(stage.seconds for stage in found.stages)
    where = "" if found.rank is None else f" in {found.rank} coordinates"
    terminal.say(
        f"{len(found.inputs)} points{where}: {found.loss:.3e} of the change left unexplained, "
        f"{sum(stage.iterations for stage in found.stages)} iterations, {seconds:.1f} s."
    )
    terminal.say(f"{found.status.value}.")
    if found.mismatch is not None:
        terminal.say(
            "Training on these points, from the initial weights, ends "
            f"{100 * found.mismatch:.2g} % of the change away from the trained weights."
        )
    if found.confidence is not None:
        doubtful = int((found.confidence < 0.5).sum())
        if doubtful:
            terminal.say(
                f"{doubtful} of {len(found.confidence)} points are doubtful (confidence below "
                "0.5): do not trust those."
            )
        elif not found.withheld:
            sign = "" if found.signs_settled else ", up to its sign"
            least = float(found.confidence.min())
            terminal.say(
                f"The weights hold every point{sign}; the least confidence is {least:.2g}."
            )
    for withheld in found.withheld:
        terminal.say(
            f"{len(withheld.points)} of {len(found.inputs)} points must not be taken for recovered "
            f"because {withheld.why}."
        )
    for sentence in found.notes:
        terminal.say(f"· {sentence}")
    terminal.say(f"Written to {out}. See: recollect report {out}")
