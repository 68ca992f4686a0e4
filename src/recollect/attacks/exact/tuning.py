"""The constants of the exact search. They are part of a record and of the fingerprint of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Thresholds, chosen on victims with known data (docs/benchmarks.md); there is rarely a reason
    to change one."""

    exact: float = 1e-20
    """A residual at the rounding of float64: nothing is left to explain."""
    better: float = 0.99
    """A change is kept only if it multiplies the loss by less than this."""
    # Signs.
    as_good: float = 10.0
    """Factor by which the residual may rise when the free linear part of a lifted objective is
    given up. With a wrong sign it rises far more."""
    wrong_side: float = 1.2
    """Where turning a point to the other side of the origin multiplies the loss by less, its sign
    is in doubt."""
    doubted_side: float = 2.0
    """Points worth trying on the other side. On the right side turning multiplies the loss by 3 or
    more, on the wrong side by about 1."""
    # The number of points, from the residual.
    jump: float = 3.0
    """Factor by which the residual rises at least when a point of the data is dropped."""
    clear_jump: float = 10.0
    """The same factor, where the number of points is to be called clear."""
    enough: float = 0.8
    """Share of unknowns to equations above which a residual falls because points use up the
    equations."""
    too_far: float = 20.0
    """Pruning ends when the residual has risen by this factor without a jump: then no number of
    points stands out."""
    growth: float = 1.3
    """Factor by which the number of points grows at each round."""
    # Respawning, last layer.
    fall: float = 5.0
    """At the data, the second endpoint lowers the residual by this factor or more."""
    vanished: float = 1e-10
    """Where training did not move the features, the data leave a smaller residual than this."""
    patience: int = 8
    """Respawns in a row that may fail."""
    patience_exact: int = 40
    """The same where training did not move the features."""
    accepted: float = 1.5
    """The search goes on from points whose loss is less than this multiple of the best one."""
    searches_in_doubt: int = 3
    """Whole searches of the last layer from random starts, while some point of the best is in doubt
    or more is left unexplained than the data leave."""
    restart_flops: float = 1e10
    """A further search is worth its time only where a step takes no more operations than this."""
    still: float = 1e-2
    """Relative change ε of the weights below which both ends of training are nearly one."""
    left: float = 10.0
    """There the data leave at most this multiple of ε². Measured on 23 kinds of victims: 3.1 at
    most."""
    clear_gap: float = 1e6
    """A gap in the spectrum of ΔW_1 above which Û is as accurate as float64 makes it."""
    tilted: float = 0.87
    """Smallest cosine between Û and the subspace it was turned into, 30 degrees. Rounding tilts it
    far less."""
    # All layers.
    rungs_falling: tuple[float, ...] = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.02)
    """Widths τ of the gates, from a random start."""
    rungs_again: tuple[float, ...] = (0.5, 0.12, 0.03, 0.02)
    """Widths τ after new points have joined."""
    rungs_closing: tuple[float, ...] = (0.1, 0.05, 0.02)
    """Widths τ when the endpoints change."""
    rungs_between: tuple[float, ...] = (0.02,)
    """Widths τ when the middle of the way joins the ends. Wider gates would lead away again."""
    rungs_closed: tuple[float, ...] = (0.01, 0.003, 0.001, 0.0003, 0.0)
    """Widths τ at the end; 0 is the network as it is. A single step to 0 ends at the first kink
    that lies in the way."""
    rung_steps: int = 30
    """Steps at each width: a stop on the way down need not be exact."""
    rung_settled: float = 1e-3
    spare: float = 3.3
    """Equations per unknown from which the last layer is tried first."""
    spare_hidden: float = 1.5
    """The same where signs hide, which the last layer is good at finding."""
    spare_last: float = 2.4
    """Equations per unknown from which the last layer has one answer (docs/benchmarks.md); with
    fewer, ê is too small."""
    firm: float = 0.01
    """A last layer that holds most points more firmly than this cannot be improved by the other
    layers."""
    little: float = 0.2
    """A point that costs less than this share of the median explains nothing of its own."""
    missing: float = 3.0
    """A new point that explains more than this many shares of the residual is missing. Measured: 10
    where a point was missing, 0.2 where none was."""
    few: int = 2
    """New points per round at least."""
    patience_all: int = 4
    """Respawns in a row that may fail, on all layers."""
    starts: int = 2
    """Random starts on all layers, where JᵀJ is formed."""
    starts_in_doubt: int = 2
    """The same for problems of any size, while some point of the best start is in doubt."""
    starts_exact: int = 20
    """The same where the loss of the data is known, until one start goes below it."""
    # Points from the zeros of ΔW_1.
    unmixing_starts: int = 60
    """Random points per round."""
    unmixing_rounds: int = 8
    unmixing_flops: float = 3e10
    """Operations of a round at most. Where they do not allow one start per point, the search comes
    first."""
    partly_read: float = 4.0
    """Factor by which the loss may rise where only some points could be read off: at the data it is
    a little higher than at the minimum."""
    # Retraining on the points that were found.
    limiting: float = 1e-3
    """Loss above which points are corrected by retraining unless the user says otherwise. Below it
    they are mostly within a hundredth of the data, and retraining takes longer than the search."""
    quick_retracing: int = 300_000
    """Number of points times number of weights up to which training on the points takes a fraction
    of a second, so that it is done whatever the loss is."""
    unlike: float = 0.5
    """Mismatch m of the first run above which it has nothing to do with the real training."""
    alike: float = 1e-3
    """Mismatch below which the run is as good as the real one."""
    retraced: float = 0.7
    """The corrected points are kept if they lower the mismatch to this share at least."""
    retracings: int = 16
    """Rounds at most."""
    patience_retracing: int = 3
    """Rounds in a row that may fail to lower the mismatch."""
    rungs_retracing: tuple[float, ...] = (0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.02)
    """Widths τ of the gates in the rounds; the last one stays. The correction holds for any width,
    and wide gates let the points move."""
    steps_retracing: int = 300
    """No other round begins after so many steps, or after half as many as the search has made if
    that is more: correcting the points should not take longer than finding them."""
    straight: float = 0.3
    """Multiple of the mismatch below which the path of a run counts as straight, as a share of the
    initial error of the outputs."""
    straight_least: float = 1e-3
    straight_most: float = 0.1
    """Limits of the same."""
    retracing_flops: float = 3e11
    """Operations of a run at most."""

    def straightness(self, mismatch: float) -> float:
        """`straight` of a run (`simulate/retraining.py`), given the mismatch of the one before."""
        return min(max(self.straight * mismatch, self.straight_least), self.straight_most)
