"""Wraps any `torch.nn.Module` as a `Network`.

f is computed by `functional_call`, and h(x; θ) by a hook on the last linear layer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from recollect.errors import VictimError, one_line
from recollect.shapes import Float, Tensor, Theta
from recollect.victim.activations import Activation
from recollect.victim.network import Derivative, Layer, Tap

_PROBES = 7
"""Number of points at which a module is tested. A layer is unlikely to have as many positions."""


class ModuleNetwork:
    """x ↦ module(reshape(Ux)), with U the identity until `restrict` is called.

    The module is copied and put into evaluation mode: a layer that mixes the points of a batch
    would give gradients of the batch, and not of f(x_i). The list of its layers does not show what
    a module computes, so each of its properties is tested at a few points, with the weights
    `theta` that it will be used with.
    """

    def __init__(
        self, module: nn.Module, theta: Theta, input_shape: tuple[int, ...] | None = None
    ) -> None:
        linears = [
            (name, child) for name, child in module.named_modules() if isinstance(child, nn.Linear)
        ]
        if not linears:
            raise VictimError(
                "expected a module whose last layer is torch.nn.Linear, got "
                f"{type(module).__name__} without one; "
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
            if hasattr(layer, "inplace"):  # Hooks read the layer's input later.
                layer.inplace = False  # type: ignore[assignment]
        tensors = [*self._module.named_parameters(), *self._module.named_buffers()]
        self._names = {
            name for name, _ in tensors
        }  # Each tensor occurs once here; a state dict lists a tied tensor under several names.
        self._last_name = last_name
        self._U: Tensor | None = None
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self.input_shape = tuple(input_shape)
        self.last = _names(last_name, last)
        self.c = last.out_features
        self.trained = tuple(
            name for name, parameter in module.named_parameters() if parameter.requires_grad
        )
        X = torch.randn(
            _PROBES, self.d, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        exact = {
            name: value.cpu().double() if value.is_floating_point() else value
            for name, value in theta.items()
        }
        try:
            self._check_output(exact, X)
            self._tapped = self._find_taps(exact, X)
            self.first = self._find_first(first_name, first, exact, X)
            self.homogeneous = self._probe_homogeneity(exact, X)
        except VictimError:
            raise
        except Exception as error:  # The module itself rejects its input, in whatever way.
            raise VictimError(
                f"expected a module that takes inputs of shape {self.input_shape}, got: "
                f"{one_line(error)}; "
                "check input_shape, and the weights"
            ) from None

    @property
    def d(self) -> int:
        return math.prod(self.input_shape) if self._U is None else self._U.shape[1]

    def fixing(self, names: Collection[str]) -> ModuleNetwork:
        fixed = copy.copy(self)
        fixed.trained = tuple(name for name in self.trained if name not in names)
        left = {name.rpartition(".")[0] for name in fixed.trained}
        fixed._tapped = tuple(name for name in self._tapped if name in left)
        return fixed

    @property
    def identity(self) -> str:
        return f"{self._module} {self.input_shape}"

    def __call__(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        own = {name: value for name, value in theta.items() if name in self._names}
        with _plain_attention():
            outputs: Tensor = torch.func.functional_call(self._module, own, (self._lift(X),))
        return outputs

    def features(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        return self._entering(self._last_name, theta, X)

    def jacobian(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "p n d"]:
        def one(x: Tensor) -> Tensor:
            return self.features(theta, x[None])[0]

        each: Tensor = torch.func.vmap(torch.func.jacfwd(one))(X)
        return each.permute(1, 0, 2)

    def derivative(self, theta: Theta, X: Float[Tensor, "n d"]) -> Derivative:
        def features(X: Tensor) -> Tensor:
            return self.features(theta, X)

        pull = torch.func.vjp(features, X)[1]

        def push(v: Tensor) -> Tensor:
            moved: Tensor = torch.func.jvp(features, (X,), (v,))[1]
            return moved

        return Derivative(push, lambda u: pull(u)[0])

    @property
    def untapped(self) -> tuple[str, ...]:
        known = {f"{name}.{kind}" for name in self._tapped for kind in ("weight", "bias")}
        return tuple(name for name in self.trained if name not in known)

    def taps(
        self, theta: Theta, X: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n c"], tuple[Tap, ...]]:
        outputs, calls = self._calls(self._tapped, theta, X)
        for name in self._tapped:
            if len(calls[name]) != 1:
                raise VictimError(
                    f"expected {name} to be called once whatever the input, got {len(calls[name])} "
                    "calls; use "
                    "--parameters last"
                )
        return outputs, tuple(_tap(name, *calls[name][0]) for name in self._tapped)

    @property
    def kinked(self) -> bool:
        return bool(self._kinks)

    @property
    def _kinks(self) -> tuple[str, ...]:
        every = self._module.named_modules(remove_duplicate=False)
        return tuple(name for name, layer in every if isinstance(layer, nn.ReLU | nn.LeakyReLU))

    def smoothed(self, theta: Theta, X: Float[Tensor, "n d"], tau: float) -> ModuleNetwork:
        """Only kinks that are separate modules (`nn.ReLU`, `nn.LeakyReLU`) are smoothed."""
        kinks = self._kinks
        calls = self._calls(kinks, theta, X)[1]
        smooth = copy.copy(self)
        smooth._module = copy.deepcopy(self._module)
        for name in kinks:
            layer = self._module.get_submodule(name)
            left = layer.negative_slope if isinstance(layer, nn.LeakyReLU) else 0.0
            if not calls[name]:
                continue
            seen = torch.cat([entered.flatten() for _, entered, _ in calls[name]])
            smooth._module.set_submodule(
                name, _Gradual(left, tau * float(seen.square().mean().sqrt()))
            )
        return smooth

    def augmented(self) -> ModuleNetwork:
        return self.restrict(torch.eye(self.d, self.d + 1, dtype=torch.float64))

    def augment_theta(self, theta: Theta, factor: float) -> Theta:
        return theta  # the module keeps its bias and is given x alone

    def restrict(self, U: Float[Tensor, "d r"]) -> ModuleNetwork:
        restricted = copy.copy(self)
        restricted._U, restricted._copies = U if self._U is None else self._U.to(U) @ U, {}
        return restricted

    def restrict_theta(self, theta: Theta, U: Float[Tensor, "d r"]) -> dict[str, Tensor]:
        return dict(theta)

    def _basis(self, X: Tensor) -> Tensor:
        """U on the device and in the precision of X.

        It is copied once, because nothing may be copied from the host inside a CUDA graph.
        """
        assert self._U is not None
        if (self._U.device, self._U.dtype) == (X.device, X.dtype):
            return self._U
        if (X.device, X.dtype) not in self._copies:
            self._copies[X.device, X.dtype] = self._U.to(X)
        return self._copies[X.device, X.dtype]

    def _lift(self, X: Tensor) -> Tensor:
        full = X if self._U is None else X @ self._basis(X).T
        return full.reshape(-1, *self.input_shape)

    def _entering(self, layer: str, theta: Theta, X: Tensor) -> Tensor:
        """The input of the named layer."""
        seen: list[Tensor] = []

        def watch(_: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            seen.extend((*inputs, *named.values()))

        hook = self._module.get_submodule(layer).register_forward_pre_hook(watch, with_kwargs=True)
        try:
            self(theta, X)
        finally:
            hook.remove()
        return seen[-1]

    def _calls(
        self, names: tuple[str, ...], theta: Theta, X: Tensor
    ) -> tuple[Tensor, dict[str, list[tuple[nn.Module, Tensor, Tensor]]]]:
        """f(X; θ), and the input and output of each named layer at each of its calls."""
        calls: dict[str, list[tuple[nn.Module, Tensor, Tensor]]] = {name: [] for name in names}

        def watch(
            name: str,
        ) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor], Tensor], Tensor]:
            def hook(
                layer: nn.Module,
                inputs: tuple[Tensor, ...],
                named: dict[str, Tensor],
                output: Tensor,
            ) -> Tensor:
                (entered,) = (*inputs, *named.values())
                calls[name].append((layer, entered, output))
                return output.clone()  # Later layers may work in place.

            return hook

        hooks = [
            self._module.get_submodule(name).register_forward_hook(watch(name), with_kwargs=True)
            for name in names
        ]
        try:
            return self(theta, X), calls
        finally:
            for hook in hooks:
                hook.remove()

    def _find_first(self, name: str, layer: nn.Linear, theta: Theta, X: Tensor) -> Layer | None:
        """The first linear layer, if it is applied once, and to the whole input.

        A layer that is applied to each token, or a second time to something else, changes by a sum
        that the inputs do not span.
        """
        names = _names(name, layer)
        calls = self._calls((name,), theta, X)[1][name]
        whole = len(calls) == 1 and calls[0][1].shape == X.shape and torch.equal(calls[0][1], X)
        ruled = name in self._tapped or not set(names.names) & set(self.trained)
        return names if whole and ruled else None

    def _find_taps(self, theta: Theta, X: Tensor) -> tuple[str, ...]:
        """Names of the trained layers whose gradient at X agrees with the formula of `Tap`.

        A layer fails this test if it is called twice, if it does not see the points in order, or
        if its tensors are also used elsewhere.
        """
        trained = {name.rpartition(".")[0] for name in self.trained}
        names = tuple(
            name
            for name, layer in self._module.named_modules()
            if name in trained and _ruled(layer)
        )
        own = {
            name: value.clone().requires_grad_(name in self.trained)
            for name, value in theta.items()
        }
        with torch.enable_grad():
            outputs, calls = self._calls(names, own, X)
            once = {name: _tap(name, *calls[name][0]) for name in names if len(calls[name]) == 1}
            once = {name: tap for name, tap in once.items() if len(tap.A) == len(X)}
            weight = torch.randn(
                outputs.shape[1], generator=torch.Generator().manual_seed(1), dtype=outputs.dtype
            )
            value = (weight * outputs[0]).sum()  # Other points must get no gradient.
        found = []
        for name, tap in once.items():
            parts = [part for part in tap.layer.names if part in self.trained]
            tensors = [tap.Y, *(own[part] for part in parts)]
            B, *slopes = torch.autograd.grad(value, tensors, retain_graph=True, allow_unused=True)
            if B is None or any(slope is None for slope in slopes):
                continue
            D = tap.positions(B)
            ruled = {tap.layer.weight: D[0].T @ tap.A[0], tap.layer.bias: D[0].sum(0)}
            ours = torch.cat([ruled[part].flatten() for part in parts])
            its = torch.cat([slope.flatten() for slope in slopes])
            if (
                ours.shape == its.shape
                and bool((ours - its).norm() <= 1e-8 * its.norm())
                and not bool(D[1:].any())
            ):
                found.append(name)
        return tuple(found)

    def _check_output(self, theta: Theta, X: Tensor) -> None:
        bias = None if self.last.bias is None else theta[self.last.bias]
        outputs, calls = self._calls((self._last_name,), theta, X)
        entered = [list(entered.shape) for _, entered, _ in calls[self._last_name]]
        if len(entered) != 1 or len(entered[0]) != 2 or entered[0][0] != len(X):
            raise VictimError(
                f"expected a module that applies its last linear layer {self._last_name} once to "
                f"one vector of features for each input, got {len(entered)} calls with shapes "
                f"{entered[:4]} for {len(X)} inputs; give a module that pools its tokens or "
                "positions before that layer"
            )
        expected = torch.nn.functional.linear(
            self.features(theta, X), theta[self.last.weight], bias
        )
        if outputs.shape != expected.shape or not torch.allclose(
            outputs, expected, rtol=1e-9, atol=1e-12
        ):
            raise VictimError(
                "expected a module whose output is that of its last linear layer "
                f"{self._last_name}, got one that "
                "does "
                "something after it; give the module without its last activation (logits, not "
                "probabilities)"
            )

    def _probe_homogeneity(self, theta: Theta, X: Tensor) -> bool:
        # h(2x) = 2^k h(x) with the same k for all points, and the last layer has no bias.
        H1, H2 = self.features(theta, X), self.features(theta, 2 * X)
        ratio = H2.norm() / H1.norm().clamp_min(1e-300)
        return self.last.bias is None and torch.allclose(H2, ratio * H1, rtol=1e-9, atol=1e-12)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention by its formula: fused kernels have no second derivatives and no forward mode."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class _Gradual(nn.Module):
    """An activation with the slopes `left` and 1, whose kink is smoothed over a width τ."""

    def __init__(self, left: float, tau: float) -> None:
        super().__init__()
        self._phi = (
            Activation("", torch.relu, torch.relu, homogeneous=False, kink=(left, 1.0))
            .smoothed(tau)
            .phi
        )

    def forward(self, t: Tensor) -> Tensor:
        return self._phi(t)


def _ruled(layer: nn.Module) -> bool:
    """Whether the gradient of this kind of layer is a sum of products B_it A_itᵀ."""
    if type(layer) is nn.Conv2d:
        return (
            layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )
    return type(layer) is nn.Linear


def _tap(name: str, layer: nn.Module, entered: Tensor, left: Tensor) -> Tap:
    if isinstance(layer, nn.Conv2d):
        patches = nn.functional.unfold(
            entered,
            layer.kernel_size,
            layer.dilation,
            cast(tuple[int, int], layer.padding),
            layer.stride,
        )
        return Tap(_names(name, layer), patches.transpose(1, 2), left, channels_first=True)
    return Tap(_names(name, layer), entered.reshape(len(entered), -1, entered.shape[-1]), left)


def _names(name: str, layer: nn.Module) -> Layer:
    prefix = f"{name}." if name else ""
    return Layer(f"{prefix}weight", f"{prefix}bias" if layer.bias is not None else None)
