"""The options of an audit. Nothing here imports torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recollect.errors import OptionError
from recollect.options import check, option

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """The options of every run: the seed and the device."""

    seed: int = option(
        0,
        help="Same seed, same machine, same number of threads: same bits.",
        least=0,
        most=2**32 - 1,
        hint="choose one of those",
    )
    device: str = option("auto", help="Where to compute.", choices=("auto", "cpu", "cuda"))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(ComputeOptions):
    """The options of an audit: the number of points, and the time and memory to use."""

    n: int | None = option(
        None,
        help="How many training points there were, if you know; auto tries what the weights "
        "suggest.",
        least=1,
        most=10**8,
        hint="give the number of training points, or auto",
    )
    budget: str = option("10m", help="Time to spend, for instance 90s, 10m or 1h.")
    memory: str | None = option(
        None,
        help="Memory to stay within, for instance 8GB; auto is all that the machine has. Kept by "
        "estimates, not "
        "enforced.",
    )
    no_inputs: bool = option(
        False,
        help="Keep nothing of what was recovered, and nothing of the truth: no points, no "
        "pictures; counts, errors and hashes only.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds_of(self.budget)
        bytes_of(self.memory)


FAILURES = {
    "exposed": "exposed",
    "partly": "partly exposed",
    "unknown": "cannot be judged",
}
"""The words of --fail-on, and the verdicts that they stand for."""


@dataclass(frozen=True, kw_only=True)
class GateOptions(AuditOptions):
    """The options of the command `audit`: those of an audit, and when its exit code says no."""

    fail_on: str = option(
        "none",
        help="Exit with 3 where the verdict is one of these, separated by commas: exposed, partly "
        "(partly exposed), unknown (cannot be judged). none: never.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        failures_of(self.fail_on)


def failures_of(fail_on: str) -> frozenset[str]:
    """The verdicts that --fail-on names."""
    names = [name.strip() for name in fail_on.split(",")]
    if names == ["none"]:
        return frozenset()
    if not set(names) <= set(FAILURES):
        raise OptionError(
            f"expected --fail-on with some of {', '.join(FAILURES)}, separated by commas, or none, "
            f"got {fail_on!r}; choose from those"
        )
    return frozenset(FAILURES[name] for name in names)


def seconds_of(budget: str | float) -> float:
    """A time in seconds, from a number or from text like 90s, 10m or 1h."""
    if isinstance(budget, (int, float)):
        if not 0 < budget < float("inf"):
            raise OptionError(
                f"expected a budget of more than no time, got {budget:g} s; give for instance 10m"
            )
        return float(budget)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    if not found or not float(found[1]) > 0:
        raise OptionError(f"expected --budget like 90s, 10m or 1h, got {budget!r}; give a time")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def bytes_of(memory: str | int | None) -> int | None:
    """A size in bytes, from a number or from text like 500MB or 8GB. None: no limit."""
    if memory is None:
        return None
    if isinstance(memory, int):
        if memory <= 0:
            raise OptionError(
                f"expected more than no memory, got {memory} bytes; give for instance 8GB"
            )
        return memory
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", memory.strip().lower())
    if not found or not float(found[1]) > 0:
        raise OptionError(f"expected --memory like 500MB or 8GB, got {memory!r}; give a size")
    return int(float(found[1]) * 1000 ** "_kmgt".index(found[2] or "_"))
