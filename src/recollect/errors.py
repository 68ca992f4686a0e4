"""The errors a person can meet. Each message reads: expected …, got …; do …

`InputError` and its children are the caller's to mend (exit code 2); `RunError` and its children are runs that
were asked for correctly and did not succeed (exit code 1).
"""

from __future__ import annotations


class RecollectError(Exception):
    """Anything Recollect refuses or fails to do, with a message fit to show as it is."""

    exit_code = 1


class InputError(RecollectError):
    """Bad usage or bad input."""

    exit_code = 2


class OptionError(InputError):
    """An option has a value that cannot be used."""


class FileError(InputError):
    """A file is missing, unreadable, or not what its name promises."""


class CheckpointError(FileError):
    """A checkpoint cannot be read, or the two checkpoints do not belong together."""


class DataError(FileError):
    """A data set cannot be read or used."""


class VictimError(InputError):
    """The victim lacks something the attack needs: a change in the weights, θ0, enough equations."""


class RunError(RecollectError):
    """A run that was asked for correctly did not succeed."""


class TrainingDiverged(RunError):
    """Gradient descent left the basin: the step is beyond the stability limit."""


class TrainingDidNotConverge(RunError):
    """Gradient descent ran out of steps above the tolerance."""
