"""Any `torch.nn.Module` as a `Network`: f by `functional_call`, h(x; θ) by a hook on its last linear layer."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from recollect.errors import VictimError
from recollect.shapes import Float, Tensor, Theta
from recollect.victim.network import Layer


class ModuleNetwork:
    """x ↦ module(reshape(Ux)), with U the identity until `restrict` is called.

    The module is copied and put into evaluation mode: a layer that mixes the points of a batch would give
    gradients of the batch, and not of f(x_i).
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...] | None = None) -> None:
        linears = [(name, child) for name, child in module.named_modules() if isinstance(child, nn.Linear)]
        if not linears:
            raise VictimError(
                f"expected a module whose last layer is torch.nn.Linear, got {type(module).__name__} without one; "
                "wrap the network so that it ends in one"
            )
        self._module = copy.deepcopy(module).eval().requires_grad_(False)
        self._last_name, last = linears[-1]
        weights = [name for name, parameter in module.named_parameters() if parameter.dim() >= 2]
        first_name, first = linears[0]
        starts_linear = weights[0] == f"{first_name}.weight"
        if input_shape is None:
            if not starts_linear:
                raise VictimError(
                    f"expected input_shape for a module that starts with {weights[0]}, got none; "
                    "give it, for instance Victim(model, theta_0, theta_f, input_shape=(3, 32, 32))"
                )
            input_shape = (first.in_features,)
        self.input_shape = tuple(input_shape)
        self.first = (
            _names(first_name, first) if starts_linear and first.in_features == math.prod(self.input_shape) else None
        )
        self.last = _names(self._last_name, last)
        self.c = last.out_features
        self.trained = tuple(name for name, parameter in module.named_parameters() if parameter.requires_grad)
        self._U: Tensor | None = None
        self.homogeneous = self._probe_homogeneity()

    @property
    def d(self) -> int:
        return math.prod(self.input_shape) if self._U is None else self._U.shape[1]

    def __call__(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        outputs: Tensor = torch.func.functional_call(self._module, dict(theta), (self._lift(X),))
        return outputs

    def features(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        seen: list[Tensor] = []
        last = self._module.get_submodule(self._last_name)
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self(theta, X)
        finally:
            hook.remove()
        return seen[-1]

    def restrict(self, U: Float[Tensor, "d r"]) -> ModuleNetwork:
        restricted = copy.copy(self)
        restricted._U = U if self._U is None else self._U.to(U) @ U
        return restricted

    def restrict_theta(self, theta: Theta, U: Float[Tensor, "d r"]) -> dict[str, Tensor]:
        return dict(theta)

    def _lift(self, X: Tensor) -> Tensor:
        full = X if self._U is None else X @ self._U.to(X).T
        return full.reshape(-1, *self.input_shape)

    def _probe_homogeneity(self) -> bool:
        # By evaluation rather than by a list of layer types: h(2x) = 2^k h(x), one k for all points.
        module = copy.deepcopy(self._module).double()
        theta = {name: value.double() for name, value in module.state_dict().items() if value.is_floating_point()}
        X = torch.randn(4, self.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        probe = copy.copy(self)
        probe._module = module
        H1, H2 = probe.features(theta, X), probe.features(theta, 2 * X)
        ratio = H2.norm() / H1.norm().clamp_min(1e-300)
        free = self.last.bias is None
        return bool(free and torch.allclose(H2, ratio * H1, rtol=1e-9, atol=1e-12))


def _names(name: str, layer: nn.Linear) -> Layer:
    prefix = f"{name}." if name else ""
    return Layer(f"{prefix}weight", f"{prefix}bias" if layer.bias is not None else None)
