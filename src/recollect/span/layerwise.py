"""GGᵀ = Σ_l (A_l A_lᵀ) ∘ (B_l B_lᵀ): all parameters at the price of a few products a layer, and never G.

The gradient of f_k(x_i) with respect to a linear layer is B_ik A_iᵀ, A_i what enters the layer and B_ik = ∂f_k/∂Y_i
what comes back to it. Hence ⟨∇f_k(x_i), ∇f_m(x_j)⟩ = Σ_l (A_i·A_j)(B_ik·B_jm), and with D_i = Σ_k α_ik B_ik

    (GΔθ)_ik = Σ_l B_ik·(ΔW_l A_i),      R_l = ΔW_l − Σ_i D_i A_iᵀ.

A layer with many positions (a convolution) has Σ_t B_ikt A_itᵀ instead (`span/passed.py`). With both
endpoints each point has its gradients at θf and at θ0; as for the last layer (`span/rows.py`) the solve is in their
mean and difference, since the two are nearly parallel. With three, the gradients halfway less that mean join them.

**Lifting** as there, for two layers without bias whose activation has a linear odd part: f = f_even + f_odd, where
f_odd is linear in x and so are its gradients. The points own the gradients of f_even, which do not mind signs; those
of f_odd at the unit vectors join the span with coefficients of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from recollect.errors import OptionError
from recollect.geometry import Geometry
from recollect.shapes import Float, Tensor, Theta
from recollect.span.base import Endpoints, Fit, Gains, Weights, cast, cost, gain
from recollect.span.gram import Gram
from recollect.span.layerwise_normal import normal_matrix
from recollect.span.normal import DenseNormal, ImplicitNormal, Normal, forcing, forms_dense, point_scales
from recollect.span.passed import Passed, mapped, stack, total
from recollect.span.rows import ends
from recollect.victim import MLP, Bent, Layer, Tap, Victim


@dataclass(frozen=True)
class ExplainedLayers:
    """Δθ = Σ_e Σ_ik α_ik ∇f_k(x_i; θ_e) + R, R orthogonal to all those gradients; layer by layer."""

    layers: list[Passed]
    """Points at θf, then the same at θ0, then halfway."""
    gram: Gram
    mixed: Float[Tensor, "*s f n c"]
    alpha: Float[Tensor, "*s f n c"]
    R: list[Float[Tensor, "*s _ _"]]

    @property
    def squares(self) -> Float[Tensor, "*s l"]:
        """‖R_l‖²."""
        # Each row in the precision of R and the rows in float64: to ask for a norm in float64 would copy all of R.
        rows = [torch.linalg.vector_norm(part, dim=-1).double() for part in self.R]
        return torch.stack([norms.square().sum(-1) for norms in rows], dim=-1)


class LayerwiseSpan:
    """A layer costs 2n²a + 2(nc)²b operations and c backward passes; memory ncb, where G would take ncab.

    A layer with positions takes ncab after all, but one layer at a time, and convolutions are small.
    Only layers with a rule can take part; `Network.untapped` names the parameters of others. `balanced` scales the
    equations of each layer so that all ΔW_l have the same norm: none is explained at the cost of others. `fit` takes
    several sets of points as well: one pass through the network for all, a Gram and a residual for each.
    """

    notes: tuple[str, ...] = ()
    capturable = True

    def __init__(
        self,
        victim: Victim,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        endpoints: Endpoints = Endpoints.FINAL,
        balanced: bool = False,
        lifted: bool = False,
    ) -> None:
        if unruled := [name for name in names if name in victim.network.untapped]:
            raise OptionError(
                f"expected parameters of linear and convolutional layers for a layerwise Gram, got {unruled[0]}; use "
                "--gram cg"
            )
        self._weights = Weights(victim, names, device, dtype)
        self._victim, self._network, self._names = victim, victim.network, frozenset(names)
        self._thetas = [cast(theta, device, dtype) for theta in ends(victim, endpoints)]
        self._mix = torch.tensor(_MIX[len(self._thetas)], dtype=dtype, device=device)
        self._refine = dtype == torch.float64
        self.endpoints, self.balanced, self.lifted = endpoints, balanced, lifted
        X = torch.zeros(1, victim.d, dtype=dtype, device=device)
        self.layers = [tap.layer for tap in self._network.taps(self._thetas[0], X)[1] if self._part(tap.layer)]
        delta = {layer: self._matrix(self._weights.delta, layer) for layer in self.layers}
        self._scales = {layer: self._balance(layer, delta[layer]) if balanced else 1.0 for layer in self.layers}
        self._delta = [self._scales[layer] * delta[layer] for layer in self.layers]
        self._fixed: list[list[Passed]] = []
        """The layers of f_odd at the unit vectors, for each end."""
        if lifted:
            if endpoints is Endpoints.PATH:
                raise OptionError(
                    "expected one or both endpoints for lifting, got path: the linear part of the middle is the mean "
                    "of the others'"
                )
            if not (isinstance(self._network, MLP) and self._network.depth == 2):
                raise OptionError("expected two layers for lifting, got another network; its signs need none")
            self._fixed = self._linear_parts(replace(self._network, parity=-1))
            self._network = replace(self._network, parity=1)

    @property
    def name(self) -> str:
        return f"layerwise Gram at {self.endpoints.where}"

    @property
    def equations(self) -> int:
        return self._weights.equations

    def unknowns(self, n: int, r: int, geometry: Geometry) -> int:
        fixed = r if self.lifted else 0
        return n * geometry.free_dimensions(r) + (n + fixed) * len(self._thetas) * self._network.c

    def flops(self, n: int) -> float:
        families, c = len(self._thetas), self._network.c
        widths = sum(tensor.shape[0] for tensor in self._weights.delta.values())
        return families * (c + 5) * self._weights.pass_flops(n) / 2 + 2.0 * (families * n * c) ** 2 * widths

    def fit_bytes(self, n: int) -> int:
        return layerwise_bytes(self._victim, tuple(self._names), n, self._mix.dtype)

    def fit(
        self, X: Float[Tensor, "*s n d"], *, gradient: bool = True, jitter: Float[Tensor, "*s"] | None = None
    ) -> Fit:
        shape = X.shape
        X, traced = self._traced(X.flatten(0, -2))
        explained = self._explain(traced, jitter, shape[:-2])
        slope = self._slope(X, traced, explained.alpha, explained.R) if gradient else None
        alpha = explained.alpha[..., : shape[-2], :].sum(-3)
        return Fit(self.loss(explained), self._weights.length * alpha, None if slope is None else slope.view(shape))

    def explain(self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None) -> ExplainedLayers:
        return self._explain(self._traced(X)[1], jitter)

    def loss(self, explained: ExplainedLayers) -> Float[Tensor, "*s"]:
        return explained.squares.sum(-1) + sum(self._outside(layer) * self._scales[layer] ** 2 for layer in self.layers)

    def _outside(self, layer: Layer) -> float:
        """What a restriction put out of reach of this layer."""
        return self._weights.outside if layer == self._network.first else 0.0

    def _balance(self, layer: Layer, delta: Tensor) -> float:
        square = float(delta.double().square().sum()) + self._outside(layer)
        return 1 / math.sqrt(len(self.layers) * square) if square > 0 else 1.0

    def costs(self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None) -> Float[Tensor, " n"]:
        explained = self.explain(X, jitter)
        shape = explained.mixed.shape
        own = torch.arange(shape.numel(), device=X.device).reshape(shape)[:, : len(X)].transpose(0, 1).flatten(1)
        return cost(explained.gram.inverse(), explained.mixed.reshape(-1, 1).double(), own)

    def gains(self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        old = self.explain(X, jitter)

        def gains(X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
            m, F, mix = len(X), len(self._thetas), self._mix
            traced = self._traced(X, attached=True)[1]
            layers = [stack(ends) for ends in zip(*(self._passed(*end, attached=True) for end in traced), strict=True)]
            shared = total(new.gram(known) for new, known in zip(layers, old.layers, strict=True))
            shared = torch.einsum("ef,fmko->meko", mix, shared.reshape(F, m, -1, shared.shape[2:].numel()))
            K = total(layer.own(F) for layer in layers)
            K = torch.einsum("ef,mfkgl,hg->mekhl", mix, K, mix).flatten(3).flatten(1, 2)
            # The old rows are mixed as the Gram is.
            shared = torch.einsum("mbgo,hg->mbho", shared.flatten(1, 2).reshape(m, -1, F, shared.shape[-1] // F), mix)
            V = old.gram.whiten(shared.reshape(m * K.shape[1], -1).T).T.reshape(m, K.shape[1], -1)
            b = total(layer.along(R) for layer, R in zip(layers, old.R, strict=True))
            b = torch.einsum("ef,fmk->mek", mix, b.reshape(F, m, -1)).flatten(1)
            return gain(K - V @ V.transpose(1, 2), b[:, :, None])

        return gains

    def _traced(self, X: Tensor, *, attached: bool = False) -> tuple[Tensor, list[tuple[Tensor, list[Tap]]]]:
        """The layers at each end; attached: what is made of them can be differentiated by the X given."""
        with torch.enable_grad():
            X = X if attached and X.requires_grad else X.detach().requires_grad_()
            traced = [self._network.taps(theta, X) for theta in self._thetas]
        return X, [(outputs, [tap for tap in taps if self._part(tap.layer)]) for outputs, taps in traced]

    def _explain(
        self, traced: list[tuple[Tensor, list[Tap]]], jitter: Tensor | None, sets: tuple[int, ...] = ()
    ) -> ExplainedLayers:
        """`sets`: the points are so many sets of points, one after the other."""
        points = [self._passed(*end) for end in traced]
        if sets:
            points = [
                [Passed(*(side.reshape(*sets, -1, *side.shape[1:]) for side in (part.A, part.B))) for part in end]
                for end in points
            ]
        if self._fixed:
            points = [
                [stack(pair) for pair in zip(own, fixed, strict=True)]
                for own, fixed in zip(points, self._fixed, strict=True)
            ]
        layers = [stack(ends) for ends in zip(*points, strict=True)]
        F, mix, delta = len(traced), self._mix, self._delta
        K = total(layer.gram(layer) for layer in layers)
        rows, c = K.shape[-2:]
        gram = Gram(self._mixed(K), jitter)

        mixed = self._coefficients(layers, gram, delta)
        R = self._without(layers, mixed, delta)
        if self._refine:
            mixed = mixed + self._coefficients(layers, gram, R)
            R = self._without(layers, mixed, delta)
        shape = (*sets, F, rows // F, c)
        return ExplainedLayers(layers, gram, mixed.reshape(shape), (mix.T @ mixed).reshape(shape), R)

    def _mixed(self, K: Float[Tensor, "*s fn c fn c"]) -> Float[Tensor, "*s fnc fnc"]:
        """From the Gram of all ends to that of their mean and difference."""
        rows, c = K.shape[-2:]
        F, mix, sets = len(self._thetas), self._mix, K.shape[:-4]
        if F == 1:
            return K.reshape(*sets, rows * c, rows * c)
        K = K.reshape(*sets, F, rows // F, c, F, rows // F, c)
        K = torch.einsum("ef,...fakgbm,hg->...eakhbm", mix, K, mix).reshape(*sets, rows * c, rows * c)
        # Where nothing moved, or nothing bent, the difference of equal numbers is rounding: such rows are none.
        lengths = K.diagonal(dim1=-2, dim2=-1).reshape(*sets, F, -1)
        there = (lengths > _ROUNDING * lengths[..., :1, :]).flatten(-2).to(K.dtype)
        kept: Tensor = there[..., :, None] * K * there[..., None, :]
        return kept

    def _coefficients(self, layers: list[Passed], gram: Gram, V: list[Tensor]) -> Float[Tensor, "*s f nc"]:
        """Of V's projection on the span, in mean and difference."""
        b = total(layer.along(part) for layer, part in zip(layers, V, strict=True))
        b = self._mix @ b.reshape(*b.shape[:-2], len(self._thetas), -1)
        return gram.solve(b.flatten(-2)[..., None]).to(b.dtype).reshape(b.shape)

    def _without(self, layers: list[Passed], mixed: Float[Tensor, "*s f nc"], V: list[Tensor]) -> list[Tensor]:
        """V less what these coefficients explain."""
        alpha = (self._mix.T @ mixed).reshape(*mixed.shape[:-2], layers[0].A.shape[-3], -1)
        return [layer.without(part, alpha) for layer, part in zip(layers, V, strict=True)]

    def _slope(
        self,
        X: Tensor,
        traced: list[tuple[Tensor, list[Tap]]],
        alpha: Float[Tensor, "*s f k c"],
        V: list[Tensor],
        *,
        keep: bool = False,
        attached: bool = False,
    ) -> Float[Tensor, "n d"]:
        """−2∇_X ⟨α, G(X)V⟩ = −2∇_X Σ_l D_i·(V_l A_i), α and V held fixed: the gradient of the loss for V = R.

        `keep`: the traced layers are used again. `attached`: it can be differentiated by V.
        """
        correlation = X.new_zeros(())
        with torch.enable_grad():
            sets = alpha.shape[:-3]
            n = len(X) // math.prod(sets)
            for (outputs, taps), own in zip(traced, alpha[..., :n, :].unbind(-3), strict=True):
                back = torch.autograd.grad(outputs, [tap.Y for tap in taps], own.flatten(0, -2), create_graph=True)
                for tap, D, part in zip(taps, back, V, strict=True):
                    A = self._entering(tap)
                    VA = mapped(A.reshape(*sets, n, *A.shape[1:]), part)
                    correlation = correlation + (tap.positions(D) * VA.flatten(0, -3)).sum()
            (slope,) = torch.autograd.grad(correlation, X, retain_graph=keep, create_graph=attached)
            return -2 * slope

    def _passed(self, outputs: Tensor, taps: list[Tap], *, attached: bool = False) -> list[Passed]:
        c = outputs.shape[1]
        unit = torch.eye(c, dtype=outputs.dtype, device=outputs.device)[:, None, :].expand(c, *outputs.shape)
        back = torch.autograd.grad(
            outputs, [tap.Y for tap in taps], unit, is_grads_batched=True, retain_graph=True, create_graph=attached
        )
        return [
            Passed(self._entering(tap) if attached else self._entering(tap).detach(), tap.positions(B).transpose(0, 1))
            for tap, B in zip(taps, back, strict=True)
        ]

    def _linear_parts(self, odd: MLP) -> list[list[Passed]]:
        X = torch.eye(odd.d, dtype=self._mix.dtype, device=self._mix.device).requires_grad_()
        with torch.enable_grad():
            traced = [odd.taps(theta, X) for theta in self._thetas]
        fixed = []
        for outputs, taps in traced:
            layers = self._passed(outputs, [tap for tap in taps if self._part(tap.layer)])
            # f_odd has no bias: there is no 1 to join what enters.
            biased = [layer.bias in self._names for layer in self.layers]
            fixed.append(
                [
                    replace(part, A=torch.cat([part.A[:, :, :-1], 0 * part.A[:, :, -1:]], dim=2)) if has else part
                    for part, has in zip(layers, biased, strict=True)
                ]
            )
        return fixed

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        if not self._fixed:
            raise ValueError("only a lifted span has signs to find")
        n = len(Z)
        fixed = [stack(ends) for ends in zip(*self._fixed, strict=True)]
        K = self._mixed(total(layer.gram(layer) for layer in fixed))
        # With a root of their Gram instead of the rows themselves the noise of all equations is alike.
        values, vectors = torch.linalg.eigh(K.double())
        T = values.clamp_min(0).sqrt()[:, None] * vectors.T
        C = self.explain(Z, jitter).mixed.double()
        linear = torch.einsum("fnc,na->facn", C[:, :n], Z.double()).reshape(-1, n)
        return T @ linear, T @ C[:, n:].reshape(-1)

    # A layer whose weight, bias or both take part, as one matrix.

    def _part(self, layer: Layer) -> bool:
        return not self._names.isdisjoint(layer.names)

    def _entering(self, tap: Tap) -> Float[Tensor, "n t a"]:
        parts = [tap.A] if tap.layer.weight in self._names else []
        if tap.layer.bias in self._names:
            parts.append(tap.A.new_ones(*tap.A.shape[:2], 1))
        A, scale = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2), self._scales[tap.layer]
        return A if scale == 1.0 else scale * A

    def _matrix(self, values: Theta, layer: Layer) -> Float[Tensor, "b a"]:
        parts = [values[name] for name in layer.names if name in self._names]
        return torch.cat([part.flatten(1) if part.dim() > 1 else part[:, None] for part in parts], dim=1)

    # Levenberg–Marquardt.

    def normal_flops(self, n: int, r: int) -> float:
        widths = sum(tensor.shape[0] for tensor in self._weights.delta.values())
        return 4.0 * widths * (n * r) ** 2 if self.dense(n, r) else self.flops(n)

    def dense(self, n: int, r: int) -> bool:
        """Whether JᵀJ is formed; for a network that can say how its layers bend."""
        return isinstance(self._network, MLP) and forms_dense(n, r, self.normal_bytes(n, r), self._mix.device)

    def normal_bytes(self, n: int, r: int) -> int:
        """Peak memory of a dense step: how the layers bend at each end, GM and its whitened copy, JᵀJ, its factors."""
        F, sides = len(self._thetas), sum(sum(delta.shape) for delta in self._delta)
        return 8 * n * r * (2 * F * sides + 4 * n * r + 2 * F * n * self._network.c)

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        Z, traced = self._traced(Z)
        explained = self._explain(traced, jitter)
        slope = self._slope(Z, traced, explained.alpha, explained.R, keep=True)
        fit = Fit(self.loss(explained), self._weights.length * explained.alpha[:, : len(Z)].sum(0), slope)
        at = Z.detach()
        barred = torch.nn.functional.normalize(at - geometry.tangent(at, at), dim=1)
        g = geometry.tangent(at, slope) / 2
        if self.dense(*Z.shape):
            return fit, DenseNormal(self._normal_matrix(at, geometry, explained), g, barred, geometry.frame(at))
        apply = self._normal_product(Z, traced, geometry, explained)
        scales = point_scales(apply, geometry, at, explained.mixed[0, : len(at)])
        return fit, ImplicitNormal(apply, scales, g, barred, forcing(fit.loss))

    def _normal_product(
        self, Z: Tensor, traced: list[tuple[Tensor, list[Tap]]], geometry: Geometry, explained: ExplainedLayers
    ) -> Callable[[Tensor], Tensor]:
        """v → JᵀJv by backward passes alone, for any network."""
        at, alpha = Z.detach(), explained.alpha
        # Jᵀu = ∇_Z Σ_l D_i·(u_l A_i) is linear in u; the gradient of ⟨Jᵀu, v⟩ by u is Jv.
        u = [torch.zeros_like(R).requires_grad_() for R in explained.R]
        transposed = self._slope(Z, traced, alpha, u, keep=True, attached=True)

        def apply(v: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
            moved = torch.autograd.grad(transposed, u, geometry.tangent(at, v), retain_graph=True)
            V = [part / -2 for part in moved]
            layers = explained.layers
            free = self._without(layers, self._coefficients(layers, explained.gram, V), V)
            return geometry.tangent(at, self._slope(Z, traced, alpha, free, keep=True)) / -2

        return apply

    def _normal_matrix(self, Z: Tensor, geometry: Geometry, explained: ExplainedLayers) -> Float[Tensor, "nr nr"]:
        assert isinstance(self._network, MLP)
        n = len(Z)
        ends = [
            self._network.bent(theta, Z, alpha[:n]) for theta, alpha in zip(self._thetas, explained.alpha, strict=True)
        ]
        layers = [
            (passed, [self._moved(bent, geometry, Z) for end in ends for bent in end if bent.layer == layer])
            for layer, passed in zip(self.layers, explained.layers, strict=True)
        ]
        return normal_matrix(layers, explained.gram, self._mix, n)

    def _moved(self, bent: Bent, geometry: Geometry, Z: Tensor) -> Bent:
        """The bias joined, the scale applied, and only moves the geometry allows."""
        A, dA, scale = bent.A, bent.dA, self._scales[bent.layer]
        if bent.layer.weight not in self._names:
            A, dA = A[:, :0], dA[:0]
        if bent.layer.bias in self._names:
            A = torch.cat([A, A.new_ones(len(A), 1)], dim=1)
            dA = torch.cat([dA, dA.new_zeros(1, *dA.shape[1:])])
        dD = None if bent.dD is None else geometry.tangent(Z, bent.dD)
        return Bent(bent.layer, scale * A, scale * geometry.tangent(Z, dA), bent.D, dD)


_ROUNDING = 1e-14
_MIX = {
    1: [[1.0]],
    2: [[0.5, 0.5], [1.0, -1.0]],
    3: [[1 / 3, 1 / 3, 1 / 3], [1.0, -1.0, 0.0], [-0.5, -0.5, 1.0]],
}
"""From θf, θ0 and their middle to the mean, the difference and the bend."""


def layerwise_bytes(victim: Victim, names: tuple[str, ...], n: int, dtype: torch.dtype) -> int:
    """About what a fit holds at once: R, its norm in float64, what came back to the layers, the Gram, its factor.

    Of a layer with positions its part of G as well. `benchmarks/layers.py` puts it beside the peak of a GPU.
    """
    X = torch.zeros(1, victim.d, dtype=torch.float64)
    theta = {name: value.cpu().double() for name, value in victim.theta_f.items()}
    rows, size = n * victim.c, dtype.itemsize
    sides = [
        (tap.A.shape[1], tap.A.shape[2], tap.positions(tap.Y).shape[-1])
        for tap in victim.network.taps(theta, X)[1]
        if not set(tap.layer.names).isdisjoint(names)
    ]
    if not sides:
        return 0
    R = sum(size * a * b for _, a, b in sides) + max(8 * a * b for _, a, b in sides)
    back = 2 * size * rows * sum(t * b for t, _, b in sides)
    G = max(2 * size * rows * a * b if t > 1 else 0 for t, a, b in sides)
    return R + back + G + (2 * size + 2 * 8) * rows**2
