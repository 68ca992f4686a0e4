"""Freed memory is kept inside the context, and given back at its end."""

from __future__ import annotations

import ctypes

import pytest
import torch

from recollect.system import allocation
from recollect.system.allocation import freed_memory_kept

TRIM, MMAP = "mallopt -1", "mallopt -3"


class Library:
    """A stand-in for the C library: it records its calls and refuses larger mmap thresholds."""

    def __init__(self, most: int = 2**40) -> None:
        self.calls: list[tuple[str, int]] = []
        self.most = most

    def mallopt(self, parameter: int, value: int) -> int:
        if f"mallopt {parameter}" == MMAP and value > self.most:
            return 0
        self.calls.append((f"mallopt {parameter}", value))
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.calls.append(("trim", pad))
        return 1


def test_only_the_outermost_context_changes_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(allocation, "_LIBRARY", library)
    kept: list[tuple[str, int]] = []

    def nested() -> None:
        with freed_memory_kept():
            kept.extend(library.calls)
            with freed_memory_kept():
                assert library.calls == kept
            assert library.calls == kept
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        nested()
    assert kept == [(MMAP, 2**30), (TRIM, 2**30)]
    assert library.calls[len(kept) :] == [(MMAP, 2**25), (TRIM, 2**25), ("trim", 0)]


@pytest.mark.parametrize(
    ("most", "calls"),
    [
        (2**25, [(MMAP, 2**25), (TRIM, 2**30), (MMAP, 2**25), (TRIM, 2**25), ("trim", 0)]),
        (0, [("trim", 0)]),
    ],
)
def test_a_library_that_takes_less_gets_less(
    monkeypatch: pytest.MonkeyPatch, most: int, calls: list[tuple[str, int]]
) -> None:
    library = Library(most)
    monkeypatch.setattr(allocation, "_LIBRARY", library)
    with freed_memory_kept():
        pass
    assert library.calls == calls


@pytest.mark.parametrize("error", [OSError, TypeError, None])
def test_other_systems_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    def library(name: object) -> object:
        if error is not None:
            raise error
        return object()  # without the functions

    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(allocation, "_LIBRARY", allocation._glibc())
    with freed_memory_kept():
        assert float(torch.ones(3).sum()) == 3
