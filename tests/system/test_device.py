"""How much memory there is, and what a lack of it looks like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.system.device import is_out_of_memory


@pytest.mark.parametrize(
    "greedy",
    [
        lambda: torch.empty(2**50),
        lambda: torch.empty(2**62),
        lambda: np.empty(2**50),
        lambda: bytearray(2**60),
    ],
)
def test_what_is_raised_for_lack_of_memory_is_known(greedy) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((MemoryError, RuntimeError)) as error:
        greedy()
    assert is_out_of_memory(error.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))


def test_other_errors_are_not_taken_for_it() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(error.value)
    assert not is_out_of_memory(ValueError("cannot allocate"))
