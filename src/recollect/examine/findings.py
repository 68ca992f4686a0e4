"""What was seen in the files, what it means for an audit, and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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

    def __str__(self) -> str:
        return f"{self.seen}: {self.consequence}; {self.remedy}"
