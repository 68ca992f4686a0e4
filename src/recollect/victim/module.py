"""Any `torch.nn.Module` as a `Network`: f by `functional_call`, h(x; θ) by a hook on its last linear layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from recollect.errors import VictimError
from recollect.shapes import Float, Tensor, Theta
from recollect.victim.activations import Activation
from recollect.victim.network import Layer, Tap


class ModuleNetwork:
    """x ↦ module(reshape(Ux)), with U the identity until `restrict` is called.

    The module is copied and put into evaluation mode: a layer that mixes the points of a batch would give
    gradients of the batch, and not of f(x_i). What a module does cannot be read off its list of layers, so everything
    claimed of it is tried at a few points, with the weights `theta` it will be used with.
    """

    def __init__(self, module: nn.Module, theta: Theta, input_shape: tuple[int, ...] | None = None) -> None:
        linears = [(name, child) for name, child in module.named_modules() if isinstance(child, nn.Linear)]
        if not linears:
            raise VictimError(
                f"expected a module whose last layer is torch.nn.Linear, got {type(module).__name__} without one; "
                "wrap the network so that it ends in one"
            )
        weights = [name for name, parameter in module.named_parameters() if parameter.dim() >= 2]
        (first_name, first), (last_name, last) = linears[0], linears[-1]
        if input_shape is None:
            if weights[0] != f"{first_name}.weight":
                raise VictimError(
                    f"expected input_shape for a module that starts with {weights[0]}, got none; "
                    "give it, for instance input_shape=(3, 32, 32), or --input-shape 3,32,32"
                )
            input_shape = (first.in_features,)
        self._module = copy.deepcopy(module).eval().requires_grad_(False)
        for layer in self._module.modules():
            if hasattr(layer, "inplace"):  # what enters it is looked at later
                setattr(layer, "inplace", False)  # noqa: B010
        tensors = [*self._module.named_parameters(), *self._module.named_buffers()]
        self._names = {name for name, _ in tensors}  # each once: tied tensors have several names in a state dict
        self._last_name = last_name
        self._U: Tensor | None = None
        self.input_shape = tuple(input_shape)
        self.last = _names(last_name, last)
        self.c = last.out_features
        self.trained = tuple(name for name, parameter in module.named_parameters() if parameter.requires_grad)
        X = torch.randn(4, self.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        exact = {name: value.cpu().double() if value.is_floating_point() else value for name, value in theta.items()}
        self._check_output(exact, X)
        starts_linear = torch.equal(self._entering(first_name, exact, X).reshape(len(X), -1), X)
        self.first = _names(first_name, first) if starts_linear else None
        self._tapped = self._find_taps(exact, X)
        self.homogeneous = self._probe_homogeneity(exact, X)

    @property
    def d(self) -> int:
        return math.prod(self.input_shape) if self._U is None else self._U.shape[1]

    @property
    def identity(self) -> str:
        return f"{self._module} {self.input_shape}"

    def __call__(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        own = {name: value for name, value in theta.items() if name in self._names}
        outputs: Tensor = torch.func.functional_call(self._module, own, (self._lift(X),))
        return outputs

    def features(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        return self._entering(self._last_name, theta, X)

    def jacobian(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "p n d"]:
        def one(x: Tensor) -> Tensor:
            return self.features(theta, x[None])[0]

        each: Tensor = torch.func.vmap(torch.func.jacfwd(one))(X)
        return each.permute(1, 0, 2)

    @property
    def untapped(self) -> tuple[str, ...]:
        known = {f"{name}.{kind}" for name in self._tapped for kind in ("weight", "bias")}
        return tuple(name for name in self.trained if name not in known)

    def taps(self, theta: Theta, X: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n c"], tuple[Tap, ...]]:
        outputs, calls = self._calls(self._tapped, theta, X)
        return outputs, tuple(_tap(name, *calls[name][0]) for name in self._tapped)

    @property
    def kinked(self) -> bool:
        return bool(self._kinks)

    @property
    def _kinks(self) -> tuple[str, ...]:
        return tuple(name for name, layer in self._module.named_modules() if isinstance(layer, nn.ReLU | nn.LeakyReLU))

    def smoothed(self, theta: Theta, X: Float[Tensor, "n d"], tau: float) -> ModuleNetwork:
        """Kinks that are modules of their own (`nn.ReLU`, `nn.LeakyReLU`) are replaced; others stay."""
        kinks = self._kinks
        calls = self._calls(kinks, theta, X)[1]
        smooth = copy.copy(self)
        smooth._module = copy.deepcopy(self._module)
        for name in kinks:
            layer = self._module.get_submodule(name)
            left = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
            seen = torch.cat([entered.flatten() for _, entered, _ in calls[name]])
            smooth._module.set_submodule(name, _Gradual(left, tau * float(seen.square().mean().sqrt())))
        return smooth

    def restrict(self, U: Float[Tensor, "d r"]) -> ModuleNetwork:
        restricted = copy.copy(self)
        restricted._U = U if self._U is None else self._U.to(U) @ U
        return restricted

    def restrict_theta(self, theta: Theta, U: Float[Tensor, "d r"]) -> dict[str, Tensor]:
        return dict(theta)

    def _lift(self, X: Tensor) -> Tensor:
        full = X if self._U is None else X @ self._U.to(X).T
        return full.reshape(-1, *self.input_shape)

    def _entering(self, layer: str, theta: Theta, X: Tensor) -> Tensor:
        """What enters the named layer."""
        seen: list[Tensor] = []
        hook = self._module.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self(theta, X)
        finally:
            hook.remove()
        return seen[-1]

    def _calls(
        self, names: tuple[str, ...], theta: Theta, X: Tensor
    ) -> tuple[Tensor, dict[str, list[tuple[nn.Module, Tensor, Tensor]]]]:
        """f(X; θ), and for each named layer what entered and what left it, call by call."""
        calls: dict[str, list[tuple[nn.Module, Tensor, Tensor]]] = {name: [] for name in names}

        def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
            def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
                calls[name].append((layer, inputs[0], output))
                return output.clone()  # what follows may work in place

            return hook

        hooks = [self._module.get_submodule(name).register_forward_hook(watch(name)) for name in names]
        try:
            return self(theta, X), calls
        finally:
            for hook in hooks:
                hook.remove()

    def _find_taps(self, theta: Theta, X: Tensor) -> tuple[str, ...]:
        """Trained layers with a rule, called once, whose tensors no other layer shares."""
        owners: dict[int, int] = {}
        for layer in self._module.modules():
            for parameter in layer.parameters(recurse=False):
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
        names = tuple(
            name
            for name, layer in self._module.named_modules()
            if name and _ruled(layer) and all(owners[id(p)] == 1 for p in layer.parameters(recurse=False))
        )
        calls = self._calls(names, theta, X)[1]
        trained = {name.rpartition(".")[0] for name in self.trained}
        return tuple(
            name for name in names if name in trained and len(calls[name]) == 1 and len(calls[name][0][1]) == len(X)
        )

    def _check_output(self, theta: Theta, X: Tensor) -> None:
        bias = None if self.last.bias is None else theta[self.last.bias]
        expected = torch.nn.functional.linear(self.features(theta, X), theta[self.last.weight], bias)
        outputs = self(theta, X)
        if outputs.shape != expected.shape or not torch.allclose(outputs, expected, rtol=1e-9, atol=1e-12):
            raise VictimError(
                f"expected a module whose output is that of its last linear layer {self._last_name}, got one that "
                "does "
                "something after it; give the module without its last activation (logits, not probabilities)"
            )

    def _probe_homogeneity(self, theta: Theta, X: Tensor) -> bool:
        # h(2x) = 2^k h(x) with one k for all points, and no bias behind it.
        H1, H2 = self.features(theta, X), self.features(theta, 2 * X)
        ratio = H2.norm() / H1.norm().clamp_min(1e-300)
        return self.last.bias is None and torch.allclose(H2, ratio * H1, rtol=1e-9, atol=1e-12)


class _Gradual(nn.Module):
    """A kink between the slopes `left` and 1, spread over a width τ."""

    def __init__(self, left: float, tau: float) -> None:
        super().__init__()
        self._phi = Activation("", torch.relu, torch.relu, homogeneous=False, kink=(left, 1.0)).smoothed(tau).phi

    def forward(self, t: Tensor) -> Tensor:
        return self._phi(t)


def _ruled(layer: nn.Module) -> bool:
    """Whether the gradient of this kind of layer is a sum of products B_it A_itᵀ."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _tap(name: str, layer: nn.Module, entered: Tensor, left: Tensor) -> Tap:
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(
            entered, layer.kernel_size, layer.dilation, cast(tuple[int, int], layer.padding), layer.stride
        )
        return Tap(_names(name, layer), patches.transpose(1, 2), left, channels_first=True)
    return Tap(_names(name, layer), entered.reshape(len(entered), -1, entered.shape[-1]), left)


def _names(name: str, layer: nn.Module) -> Layer:
    prefix = f"{name}." if name else ""
    return Layer(f"{prefix}weight", f"{prefix}bias" if layer.bias is not None else None)
