"""Which settings an audit tries, and in which order.

1. The last layer alone with n = rank ΔW_1. This is the cheapest setting, and n examples almost
   always have rank n if there are fewer examples than input dimensions. If the activation is not
   known and ReLU leaves more than a hundredth unexplained, the setting is repeated with other
   activations.
2. All layers with the same number of points. Where training did not move the last layer, or moved
   it alone, only one of the two is tried; without ΔW_1 points are sought in all of R^d.
3. The last layer with n from the residual, in case there are more examples than rank ΔW_1, and
   then all layers with the n that was found. Where the rank is that of the whole space, n cannot be
   seen, and multiples of the rank are tried too.
4. The attempt that explains most, from other random starts: a point counts only if another start
   finds it too.

If the first setting is not expected to end within its share of the time and another one is, the
other one comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from recollect.auditing.attempt import Attempt, Setting
from recollect.auditing.forecast import first_attack
from recollect.auditing.ranking import adjusted_loss
from recollect.examine.findings import Finding, Severity
from recollect.examine.inspection import Inspection
from recollect.examine.subspace import feature_rank
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim, attackable

_SHARE_OF_GUESS = 0.07
"""Share of the remaining time for a guess at the activation."""
_LAYERS = {"last": "last layer", "all": "all layers"}
ACTIVATIONS = ("relu", "tanh", "gelu", "silu", "leaky-relu", "sigmoid", "elu", "softplus")
PLAINLY = 0.1
"""Another activation replaces the assumed one only if its loss is below this share of the assumed
one's loss."""
LITTLE = 0.01
"""With a smaller loss the assumed activation stands. A right one leaves 0.001 to 0.005 of a change
that gradients at both ends explain, and a wrong one ten times as much and more."""
_FULL = 0.9
"""From this share of all directions on, the rank of ΔW_1 may be that of the space and not n."""
_MULTIPLES = (1, 2, 4)
RANDOM_STARTS = 3


def opening(
    victim: Victim,
    looked: Inspection,
    n: int | None,
    seed: int,
    attempts: Sequence[Attempt],
    in_time: Callable[[Setting], bool],
) -> Iterator[Setting]:
    """Yield the settings up to the other random starts.

    Each one is chosen when the results of the earlier ones are known. `in_time` says whether a
    setting is expected to end within its share of the time. Each setting has a seed of its own, so
    that what two of them find was found independently.
    """
    kinds = attackable(victim.network)
    first, *others = (replace(first_attack(looked), parameters=kind) for kind in kinds)
    guesses = _guesses(victim, looked, n)
    every = others[0] if others else None
    for name, number in guesses.items():
        pair = [Setting(f"{_LAYERS[kinds[0]]}, {name}", victim, first, number, seed)]
        if every is not None:
            pair.append(Setting(f"all layers, {name}", victim, every, number, seed + 1))
            if not in_time(pair[0]) and in_time(pair[1]):
                pair.reverse()
        yield pair[0]
        yield from _other_activations(victim, attempts)
        victim = plainest(attempts, victim)
        for one in pair[1:]:
            yield replace(one, victim=victim)
    if n is None and not first.needs.n:
        yield Setting("last layer, n from the residual", victim, first, None, seed + 2)
        if not guesses:
            yield from _other_activations(victim, attempts)
            victim = plainest(attempts, victim)
        found = attempts[-1].found
        if every is not None and found is not None and len(found.inputs) not in guesses.values():
            number = len(found.inputs)
            yield Setting("all layers, the same n", victim, every, number, seed + 3)
    elif not guesses:
        yield Setting("all layers", victim, first, None, seed)
    if n is None and (rank := unseen_rank(looked)) is not None:
        for k, multiple in enumerate(_MULTIPLES):
            if multiple * rank in guesses.values():
                continue
            name = f"n = {multiple} × rank of ΔW1"
            one = Setting(f"{_LAYERS[kinds[0]]}, {name}", victim, first, multiple * rank, seed + 4)
            if every is not None and not in_time(one):  # all layers determine more points
                one = replace(one, name=f"all layers, {name}", attack=every)
            yield replace(one, seed=one.seed + k)


def other_start(best: Setting, n: int, start: int, seed: int) -> Setting:
    """The same attack from another random start; the first of them is number 2."""
    name = f"{best.name.partition(',')[0]}, n = {n}, random start {start}"
    return replace(best, name=name, n=n, seed=seed + 10 * start, share=1.0)


def plainest(attempts: Sequence[Attempt], victim: Victim) -> Victim:
    """The victim with the activation that explains plainly more than the one that was assumed.

    A guess that was cut off does not replace an attempt that ran to its end.
    """
    tried = [one for one in attempts if one.found is not None]
    if not tried:
        return victim
    best = tried[0]
    for one in tried[1:]:
        assert one.found is not None
        assert best.found is not None
        if one.setting.victim.network.identity == best.setting.victim.network.identity:
            continue
        if (one.whole or not best.whole) and one.found.loss < PLAINLY * best.found.loss:
            best = one
    return best.setting.victim


def unseen_rank(looked: Inspection) -> int | None:
    """The rank of ΔW_1 if there may be more points than that; None if the rank shows their
    number."""
    found = looked.spectrum
    if found is None:
        return None
    full = not found.found or found.rank >= _FULL * looked.directions
    return found.rank if full else None


def unseen_number(looked: Inspection, n: int | None) -> list[Finding]:
    """The finding that the number of training points cannot be seen."""
    rank = unseen_rank(looked)
    if n is not None or rank is None:
        return []
    return [
        Finding(
            Severity.LIMITS,
            f"the number of training points cannot be seen: the first layer's change has rank "
            f"{rank}, in {looked.directions} directions that can hold data",
            "there may be any number of points from there on; several numbers were tried, and with "
            "a wrong one little is found",
            "give --n if you know how many training points there were",
            code="number-not-visible",
        )
    ]


def _guesses(victim: Victim, looked: Inspection, n: int | None) -> dict[str, int]:
    spectrum = looked.spectrum
    if n is not None:
        return {"n given": n}
    if spectrum is not None and spectrum.found:
        return {"n = rank of ΔW1": spectrum.rank}
    if spectrum is None and (rank := feature_rank(victim)) is not None:
        return {"n = rank of the first change": rank}
    return {}


def _other_activations(victim: Victim, attempts: Sequence[Attempt]) -> Iterator[Setting]:
    """The setting just tried with each other activation, if the activation was only assumed and
    leaves more than a little unexplained."""
    tried, network = attempts[-1], victim.network
    if tried.found is None or not isinstance(network, MLP) or not network.assumed:
        return
    n = len(tried.found.inputs)
    # With few equations to spare a wrong activation leaves little as well.
    for phi in ACTIVATIONS:
        settled = plainest(attempts, victim)
        if settled is not victim or adjusted_loss(tried.found) < LITTLE:
            return
        if phi != network.activation:
            other = Victim(
                replace(network, activation=phi),
                victim.theta_0,
                victim.theta_f,
                input_shape=victim.input_shape,
            )
            name = f"{tried.setting.name}, {phi} instead of {network.activation}"
            yield replace(tried.setting, name=name, victim=other, n=n, share=_SHARE_OF_GUESS)
