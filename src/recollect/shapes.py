"""The paper's symbols as shapes, so that signatures read like the paper.

| letter | meaning                                        |
|--------|------------------------------------------------|
| n      | training points (or candidates for them)       |
| d      | input dimension                                |
| r      | dimension of the data's subspace               |
| c      | outputs of the network                         |
| p      | width: inputs of the last layer                |
| m      | parameters taken part in Δθ (rows of Gᵀ)       |

The annotations are checked at run time in the tests only.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Bool, Float, Int
from torch import Tensor

Theta = Mapping[str, Tensor]
"""Parameters by name: θ0, θf, or Δθ."""

__all__ = ["Bool", "Float", "Int", "Tensor", "Theta"]
