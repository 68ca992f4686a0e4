"""Shapes are checked at run time in the tests: every jaxtyping annotation of the package becomes an assertion."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

hook = install_import_hook("recollect", "beartype.beartype")

hypothesis.settings.register_profile("recollect", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("recollect")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side; threads inside each would only fight."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
