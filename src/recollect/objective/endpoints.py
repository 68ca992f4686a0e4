"""Where on the path of training gradients are taken: θf, θ0, both, or both and the middle."""

from __future__ import annotations

from enum import Enum


class Endpoints(Enum):
    """The points θ_e of the path of training at which gradients are taken."""

    FINAL = "final"
    INITIAL = "initial"
    BOTH = "both"
    PATH = "path"
    """Both ends, and weights on the way: the middle of the straight line between them where nothing
    better is known."""

    @property
    def where(self) -> str:
        """The points in symbols, for descriptions."""
        return {
            "final": "θf",
            "initial": "θ0",
            "both": "θf and θ0",
            "path": "θf, θ0 and their middle",
        }[self.value]

    @property
    def several(self) -> bool:
        """Whether gradients are taken at more than one θ_e."""
        return self in (Endpoints.BOTH, Endpoints.PATH)
