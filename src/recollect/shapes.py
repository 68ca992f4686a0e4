"""The paper's symbols as shapes, so that signatures read like the paper.

| letter | meaning                                        |
|--------|------------------------------------------------|
| n      | training points (or candidates for them)       |
| d      | input dimension                                |
| r      | dimension of the data's subspace               |
| c      | outputs of the network                         |
| p      | width: inputs of the last layer                |
| m      | parameters that Δθ includes (rows of Gᵀ)       |

The annotations are checked at run time only in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Theta = Mapping[str, Tensor]
"""Parameters by name: θ0, θf, or Δθ."""

__all__ = ["Bool", "Float", "Int", "Tensor", "Theta", "cast"]


def cast(theta: Theta, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """θ on the device, with its floating-point tensors in this precision."""
    return {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in theta.items()
    }
