"""Shapes are checked at run time in the tests: every jaxtyping annotation of the package becomes an
assertion."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

# Modules that name types only for the type checker, so that they need not import torch, cannot be
# checked at run time.
CHECKED = [
    *(
        f"recollect.{name}"
        for name in ("examine", "geometry", "objective", "records", "report", "shapes", "study")
    ),
    *(f"recollect.{name}" for name in ("simulate", "system", "theory", "solve.loop", "demo")),
    *(f"recollect.attacks.{name}" for name in ("cost", "problem", "projection", "result", "runs")),
    *(
        f"recollect.attacks.exact.{name}"
        for name in ("all_layers", "base", "confidence", "last_layer")
    ),
    *(f"recollect.attacks.exact.{name}" for name in ("respawn", "run", "signs")),
    *(f"recollect.auditing.{name}" for name in ("call", "forecast", "nulls", "run", "verdict")),
    *(f"recollect.truth.{name}" for name in ("data", "files", "images", "match", "metrics")),
    *(f"recollect.victim.{name}" for name in ("activations", "architectures", "mlp", "module")),
    *(f"recollect.victim.{name}" for name in ("network", "parity", "read", "victim")),
]
hook = install_import_hook(CHECKED, "beartype.beartype")

hypothesis.settings.register_profile("recollect", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("recollect")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side; threads inside each would only fight."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
