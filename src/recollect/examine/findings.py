"""What was seen in the files, what it means for an audit, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

Hindrance = Literal["misfit", "layer", "adapter", "counting", "no-evidence"]


class Severity(Enum):
    UNREADABLE = "cannot be read"
    STOPS = "stops the audit"
    LIMITS = "limits what it can say"


@dataclass(frozen=True)
class Finding:
    severity: Severity
    seen: str
    consequence: str
    remedy: str
    misfit: bool = False
    """Whether the method does not fit what made these weights: what is not found then tells
    nothing."""
    code: str = ""
    """A stable name of this finding, by which a program recognises it (docs/audit.md lists all)."""
    reason: Hindrance | None = None
    """What keeps an audit from an answer where nothing is found, if it is not `misfit`."""

    @property
    def hinders(self) -> Hindrance | None:
        """Why an audit with this finding that finds nothing cannot tell; None if it can."""
        return self.reason or ("misfit" if self.misfit else None)

    def __str__(self) -> str:
        return f"{self.seen}: {self.consequence}; {self.remedy}"
