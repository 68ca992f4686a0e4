"""GGᵀ = Σ_l (A_l A_lᵀ) ∘ (B_l B_lᵀ): all parameters by a few products per layer, without G.

The gradient of f_k(x_i) with respect to a linear layer is B_ik A_iᵀ, where A_i is what enters the
layer and B_ik = ∂f_k/∂Y_i is what comes back to its output. Hence
⟨∇f_k(x_i), ∇f_m(x_j)⟩ = Σ_l (A_i·A_j)(B_ik·B_jm), and with D_i = Σ_k α_ik B_ik

    (GΔ)_ik = Σ_l B_ik·(ΔW_l A_i),      R_l = ΔW_l − Σ_i D_i A_iᵀ.

A layer with many positions (a convolution) has Σ_t B_ikt A_itᵀ instead (`objective/factors.py`).
With both endpoints each point has gradients at θf and at θ0. These are nearly parallel, so the
system is solved for their mean and difference, as for the last layer (`objective/rows.py`). With
the midpoint as a third θ_e, a third row joins them: the gradient at the midpoint minus the mean of
the gradients at the two ends.

**Lifting** works as for the last layer, for two layers without bias whose activation has a linear
odd part: f = f_even + f_odd, where f_odd is linear in x and so are its gradients. The points own
the gradients of f_even, which do not depend on signs. The gradients of f_odd at the unit vectors
join the span with coefficients of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from recollect.errors import OptionError
from recollect.geometry import Geometry
from recollect.objective.base import Fit, Gains, GramObjective, barred, cost, gain
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.factors import LayerFactors, mapped, stack, total
from recollect.objective.gram import Gram
from recollect.objective.layerwise_normal import normal_matrix
from recollect.objective.normal import DenseNormal, ImplicitNormal, Normal, forcing, point_scales
from recollect.objective.sizes import Sizes
from recollect.shapes import Float, Tensor, Theta, cast
from recollect.victim.mlp import MLP
from recollect.victim.network import Bent, Layer, Tap


@dataclass(frozen=True)
class ExplainedLayers:
    """Δ = Σ_e Σ_ik α_ik^e ∇f_k(x_i; θ_e) + R, R orthogonal to the gradients; layer by layer."""

    layers: list[LayerFactors]
    """The factors of all points at θf, then at θ0, then halfway."""
    gram: Gram
    mixed: Float[Tensor, "*s f n c"]
    """The coefficients of mean and difference."""
    alpha: Float[Tensor, "*s f n c"]
    """The coefficients of the gradients at each θ_e."""
    R: list[Float[Tensor, "*s _ _"]]

    @property
    def squares(self) -> Float[Tensor, "*s l"]:
        """‖R_l‖²."""
        # Rows are summed in the precision of R and their norms in float64, because a norm in
        # float64 would need a copy of all of R.
        rows = [torch.linalg.vector_norm(part, dim=-1).double() for part in self.R]
        return torch.stack([norms.square().sum(-1) for norms in rows], dim=-1)


@dataclass(frozen=True)
class Traced:
    """Points, what passed through the layers at each θ_e, and what that explains."""

    X: Float[Tensor, "n d"]
    ends: list[tuple[Tensor, list[Tap]]]
    explained: ExplainedLayers


class LayerwiseObjective(GramObjective[Traced]):
    """L(X) of all chosen parameters; a layer costs 2n²a + 2(nc)²b operations and c backward passes.

    It needs memory for ncb numbers per layer, where G would need ncab. A layer with positions does
    need ncab, but only one layer at a time, and convolutions are small. Only layers with a rule can
    take part; `Network.untapped` names the parameters of the others. `balanced` scales the
    equations of each layer so that all ΔW_l have the same norm, and no layer is explained at the
    cost of the others. `fit` also takes several sets of points: they share one pass through the
    network, and each has a Gram matrix and a residual of its own.
    """

    def __init__(
        self,
        evidence: Evidence,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        balanced: bool = False,
        lifted: bool = False,
    ) -> None:
        if unruled := [name for name in names if name in evidence.network.untapped]:
            raise OptionError(
                "expected parameters of linear and convolutional layers for a layerwise Gram, got "
                f"{unruled[0]}; use --gram cg"
            )
        super().__init__(evidence, names, device=device, dtype=dtype, lifted=lifted)
        self._network, self._names, self.balanced = evidence.network, frozenset(names), balanced
        self._mix = torch.tensor(_MIX[self.families], dtype=dtype, device=device)
        X = torch.zeros(1, evidence.d, dtype=dtype, device=device)
        taps = self._network.taps(self._thetas[0], X)[1]
        self.layers = [tap.layer for tap in taps if self._part(tap.layer)]
        delta = {layer: self._matrix(self._target.delta, layer) for layer in self.layers}
        self._scales = {
            layer: self._balance(layer, delta[layer]) if balanced else 1.0 for layer in self.layers
        }
        self._delta = [self._scales[layer] * delta[layer] for layer in self.layers]
        self._fixed: list[list[LayerFactors]] = []
        """The layers of f_odd at the unit vectors, for each θ_e."""
        if lifted:
            if self.endpoints is Endpoints.PATH:
                raise OptionError(
                    "expected one or both endpoints for lifting, got path: the linear part of the "
                    "middle is the mean of the others'"
                )
            if not (isinstance(self._network, MLP) and self._network.depth == 2):
                raise OptionError(
                    "expected two layers for lifting, got another network; its signs need none"
                )
            self._fixed = self._linear_parts(replace(self._network, parity=-1))
            self._network = replace(self._network, parity=1)

    def at(self, endpoints: Endpoints) -> LayerwiseObjective:
        return LayerwiseObjective(
            self.evidence.at(endpoints),
            self.names,
            device=self._device,
            dtype=self._dtype,
            balanced=self.balanced,
            lifted=self.lifted,
        )

    @property
    def name(self) -> str:
        return f"layerwise Gram at {self.endpoints.where}"

    @property
    def fixed_rows(self) -> int:
        return self.families * self.evidence.d if self.lifted else 0

    @cached_property
    def sizes(self) -> Sizes:
        return layerwise_sizes(self.evidence, tuple(self._names), self._dtype)

    def fit(
        self,
        X: Float[Tensor, "*s n d"],
        *,
        gradient: bool = True,
        jitter: Float[Tensor, "*s"] | None = None,
    ) -> Fit:
        shape, slope = X.shape, None
        if gradient or len(shape) > 2:
            X, traced = self._traced(X.flatten(0, -2))
            explained = self._explain(traced, jitter, shape[:-2])
        else:
            explained = self.explain(X, jitter)
        if gradient:
            slope = self._slope(X, traced, explained.alpha, explained.R).view(shape)
        alpha = explained.alpha[..., : shape[-2], :].sum(-3)
        return Fit(self.loss(explained), self._target.length * alpha, slope)

    def explain(
        self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None
    ) -> ExplainedLayers:
        """Δ split into what the gradients at X explain and the rest."""
        return self._split(X, jitter).explained

    def _computed(self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None) -> Traced:
        X, traced = self._traced(X)
        return Traced(X, traced, self._explain(traced, jitter))

    def remainder(
        self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None
    ) -> dict[str, Tensor]:
        parts: dict[str, Tensor] = {}
        for layer, R in zip(self.layers, self.explain(X, jitter).R, strict=True):
            R = self._target.length / self._scales[layer] * R
            if layer.bias in self._names:
                assert layer.bias is not None
                R, parts[layer.bias] = R[:, :-1], R[:, -1]
            if layer.weight in self._names:
                parts[layer.weight] = R.reshape(self._target.delta[layer.weight].shape)
        return parts

    def loss(self, explained: ExplainedLayers) -> Float[Tensor, "*s"]:
        """‖R‖²/‖Δ‖²."""
        outside = sum(self._outside(layer) * self._scales[layer] ** 2 for layer in self.layers)
        return explained.squares.sum(-1) + outside

    def _outside(self, layer: Layer) -> float:
        """The part of this layer's change that a restriction puts out of reach."""
        return self._target.outside if layer == self._network.first else 0.0

    def _balance(self, layer: Layer, delta: Tensor) -> float:
        """1/(√L‖ΔW_l‖): the factor that gives the L layers equal norms and Δ the norm 1."""
        square = float(delta.double().square().sum()) + self._outside(layer)
        return 1 / math.sqrt(len(self.layers) * square) if square > 0 else 1.0

    def costs(
        self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, " n"]:
        explained = self.explain(X, jitter)
        shape = explained.mixed.shape
        rows = torch.arange(shape.numel(), device=X.device).reshape(shape)
        own = rows[:, : len(X)].transpose(0, 1).flatten(1)
        return cost(explained.gram.inverse(), explained.mixed.reshape(-1, 1).double(), own)

    def gains(self, X: Float[Tensor, "n d"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        old = self.explain(X, jitter)

        def gains(X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
            m, F, mix = len(X), self.families, self._mix
            traced = self._traced(X, attached=True)[1]
            ends = [self._passed(*end, attached=True) for end in traced]
            layers = [stack(end) for end in zip(*ends, strict=True)]
            shared = total(new.gram(known) for new, known in zip(layers, old.layers, strict=True))
            known = shared.shape[2:].numel()
            shared = torch.einsum("ef,fmko->meko", mix, shared.reshape(F, m, -1, known))
            K = total(layer.own(F) for layer in layers)
            K = torch.einsum("ef,mfkgl,hg->mekhl", mix, K, mix).flatten(3).flatten(1, 2)
            # The old rows are mixed in the same way as the rows of the Gram matrix.
            shared = shared.flatten(1, 2).reshape(m, -1, F, known // F)
            shared = torch.einsum("mbgo,hg->mbho", shared, mix)
            V = old.gram.whiten(shared.reshape(m * K.shape[1], -1).T).T.reshape(m, K.shape[1], -1)
            b = total(layer.along(R) for layer, R in zip(layers, old.R, strict=True))
            b = torch.einsum("ef,fmk->mek", mix, b.reshape(F, m, -1)).flatten(1)
            return gain(K - V @ V.transpose(1, 2), b[:, :, None], K.diagonal(dim1=1, dim2=2))

        return gains

    def _traced(
        self, X: Tensor, *, attached: bool = False
    ) -> tuple[Tensor, list[tuple[Tensor, list[Tap]]]]:
        """The layers at each θ_e.

        If `attached`, what is made of them can be differentiated with respect to the X given.
        """
        with torch.enable_grad():
            X = X if attached and X.requires_grad else X.detach().requires_grad_()
            traced = [self._network.taps(theta, X) for theta in self._thetas]
        return X, [
            (outputs, [tap for tap in taps if self._part(tap.layer)]) for outputs, taps in traced
        ]

    def _explain(
        self,
        traced: list[tuple[Tensor, list[Tap]]],
        jitter: Tensor | None,
        sets: tuple[int, ...] = (),
    ) -> ExplainedLayers:
        """`sets` is the shape of the stack of sets of points that the traced points form."""
        points = [self._passed(*end) for end in traced]
        if sets:
            points = [
                [
                    LayerFactors(
                        part.A.reshape(*sets, -1, *part.A.shape[1:]),
                        part.B.reshape(*sets, -1, *part.B.shape[1:]),
                    )
                    for part in end
                ]
                for end in points
            ]
        if self._fixed:
            points = [
                [
                    stack((part, linear.repeated(sets)))
                    for part, linear in zip(own, fixed, strict=True)
                ]
                for own, fixed in zip(points, self._fixed, strict=True)
            ]
        layers = [stack(ends) for ends in zip(*points, strict=True)]
        F, mix, delta = len(traced), self._mix, self._delta
        rows, c = layers[0].B.shape[-4:-2]
        gram = Gram(self._kernel(layers), jitter)

        mixed = self._coefficients(layers, gram, delta)
        R = self._without(layers, mixed, delta)
        if self._refine:
            mixed = mixed + self._coefficients(layers, gram, R)
            R = self._without(layers, mixed, delta)
        shape = (*sets, F, rows // F, c)
        alpha = (mix.T @ mixed).reshape(shape)
        return ExplainedLayers(layers, gram, mixed.reshape(shape), alpha, R)

    def _kernel(self, layers: list[LayerFactors]) -> Float[Tensor, "*s fnc fnc"]:
        """The Gram matrix of the mean and the differences of the gradients at all θ_e.

        Only its lower triangle is meant to be read. The first layer receives the same A at every
        θ_e, and the last layer has the identity for B. The mean and the differences of their
        gradients are therefore outer products themselves, whose differences are taken before
        anything is squared. Only the layers between are mixed entry by entry.
        """
        F, network = self.families, self._network
        *sets, rows, c = layers[0].B.shape[:-2]
        K = layers[0].B.new_zeros(*sets, rows, c, rows, c)
        between = []
        for layer, factors in zip(self.layers, layers, strict=True):
            A, B = factors.A, factors.B
            if layer == network.last and A.shape[-2] == 1:
                A = self._differences(A, -3)[..., 0, :]
                K.diagonal(dim1=-3, dim2=-1).add_((A @ A.mT)[..., None])
            elif layer == network.first or F == 1:
                LayerFactors(A, self._differences(B, -4)).add_gram(K)
            else:
                between.append(factors)
        if between:
            K += self._mixed(total(factors.gram(factors) for factors in between))
        K = K.reshape(*sets, rows * c, rows * c)
        if F > 1:
            # Where nothing moved, or nothing bent, the difference of equal numbers is mere
            # rounding. Such rows count as rows of zeros.
            lengths = K.diagonal(dim1=-2, dim2=-1).reshape(*sets, F, -1)
            there = (lengths > _ROUNDING * lengths[..., :1, :]).flatten(-2).to(K.dtype)
            K.mul_(there[..., :, None]).mul_(there[..., None, :])
        return K

    def _differences(self, parts: Tensor, points: int) -> Tensor:
        """Mean and differences of factors; `points` is the dimension of all points at all θ_e."""
        if self.families == 1:
            return parts
        sets = parts.shape[:points]
        ends: Tensor = self._mix @ parts.reshape(*sets, self.families, -1)
        return ends.view(parts.shape)

    def _mixed(self, K: Float[Tensor, "*s fn c fn c"]) -> Float[Tensor, "*s fn c fn c"]:
        """From the Gram matrix of the gradients at all θ_e to that of mean and differences."""
        F, shape = self.families, K.shape
        K = K.reshape(*shape[:-4], F, shape[-4] // F * shape[-3], F, -1)
        K = torch.einsum("ef,...fagb,hg->...eahb", self._mix, K, self._mix)
        return K.reshape(shape)

    def _coefficients(
        self, layers: list[LayerFactors], gram: Gram, V: list[Tensor]
    ) -> Float[Tensor, "*s f nc"]:
        """The coefficients of V's projection on the span, in mean and difference."""
        b = total(layer.along(part) for layer, part in zip(layers, V, strict=True))
        b = self._mix @ b.reshape(*b.shape[:-2], self.families, -1)
        return gram.solve(b.flatten(-2)[..., None]).to(b.dtype).reshape(b.shape)

    def _without(
        self, layers: list[LayerFactors], mixed: Float[Tensor, "*s f nc"], V: list[Tensor]
    ) -> list[Tensor]:
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
        """−2∇_X ⟨α, G(X)V⟩ = −2∇_X Σ_l D_i·(V_l A_i), with α and V held fixed.

        For V = R this is the gradient of the loss. `keep` says that the traced layers will be used
        again, and `attached` that the result can be differentiated with respect to V.
        """
        correlation = X.new_zeros(())
        with torch.enable_grad():
            sets = alpha.shape[:-3]
            n = len(X) // math.prod(sets)
            for (outputs, taps), own in zip(traced, alpha[..., :n, :].unbind(-3), strict=True):
                ends = [tap.Y for tap in taps]
                back = torch.autograd.grad(outputs, ends, own.flatten(0, -2), create_graph=True)
                for tap, D, part in zip(taps, back, V, strict=True):
                    A = self._entering(tap)
                    VA = mapped(A.reshape(*sets, n, *A.shape[1:]), part)
                    correlation = correlation + (tap.positions(D) * VA.flatten(0, -3)).sum()
            (slope,) = torch.autograd.grad(correlation, X, retain_graph=keep, create_graph=attached)
            return -2 * slope

    def _passed(
        self, outputs: Tensor, taps: list[Tap], *, attached: bool = False
    ) -> list[LayerFactors]:
        """The factors of ∇f_k(x_i) for each layer, by one backward pass for each output."""
        c = outputs.shape[1]
        unit = torch.eye(c, dtype=outputs.dtype, device=outputs.device)[:, None, :]
        back = torch.autograd.grad(
            outputs,
            [tap.Y for tap in taps],
            unit.expand(c, *outputs.shape),
            is_grads_batched=True,
            retain_graph=True,
            create_graph=attached,
        )
        entering = [self._entering(tap) for tap in taps]
        return [
            LayerFactors(A if attached else A.detach(), tap.positions(B).transpose(0, 1))
            for A, tap, B in zip(entering, taps, back, strict=True)
        ]

    def _linear_parts(self, odd: MLP) -> list[list[LayerFactors]]:
        """The factors of ∇f_odd at the unit vectors, for each θ_e."""
        X = torch.eye(odd.d, dtype=self._mix.dtype, device=self._mix.device).requires_grad_()
        with torch.enable_grad():
            traced = [odd.taps(theta, X) for theta in self._thetas]
        # f_odd has no bias, so nothing may be joined to what enters a layer.
        biased = [layer.bias in self._names for layer in self.layers]
        fixed = []
        for outputs, taps in traced:
            layers = self._passed(outputs, [tap for tap in taps if self._part(tap.layer)])
            fixed.append(
                [
                    replace(part, A=torch.cat([part.A[:, :, :-1], 0 * part.A[:, :, -1:]], dim=2))
                    if has
                    else part
                    for part, has in zip(layers, biased, strict=True)
                ]
            )
        return fixed

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        if not self._fixed:
            raise ValueError("only a lifted objective has signs to find")
        n = len(Z)
        fixed = [stack(ends) for ends in zip(*self._fixed, strict=True)]
        K = self._kernel(fixed)
        # With a root of their Gram matrix instead of the rows themselves, all equations have the
        # same level of noise.
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
        A = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        scale = self._scales[tap.layer]
        return A if scale == 1.0 else scale * A

    def _matrix(self, values: Theta, layer: Layer) -> Float[Tensor, "b a"]:
        parts = [values[name] for name in layer.names if name in self._names]
        columns = [part.flatten(1) if part.dim() > 1 else part[:, None] for part in parts]
        return torch.cat(columns, dim=1)

    # Levenberg–Marquardt.

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        split = self._split(Z, jitter)
        Z, traced, explained = split.X, split.ends, split.explained
        slope = self._slope(Z, traced, explained.alpha, explained.R, keep=True)
        alpha = explained.alpha[:, : len(Z)].sum(0)
        fit = Fit(self.loss(explained), self._target.length * alpha, slope)
        at = Z.detach()
        fixed = barred(geometry, at)
        g = geometry.tangent(at, slope) / 2

        def matrix() -> DenseNormal:
            N = self._normal_matrix(at, geometry, explained)
            return DenseNormal(N, g, fixed, geometry.frame(at))

        if self.steps_dense(len(Z), coupled=geometry.coupled):
            return fit, matrix()
        product = self._normal_product(Z, traced, geometry, explained)
        scales = point_scales(product, geometry, at, explained.mixed[0, : len(at)])
        formed = matrix if self.dense(len(Z), coupled=geometry.coupled) else None
        return fit, ImplicitNormal(product, scales, g, fixed, forcing(fit.loss), matrix=formed)

    def _normal_product(
        self,
        Z: Tensor,
        traced: list[tuple[Tensor, list[Tap]]],
        geometry: Geometry,
        explained: ExplainedLayers,
    ) -> Callable[[Tensor], Tensor]:
        """v ↦ JᵀJv by backward passes alone, for any network."""
        at, alpha = Z.detach(), explained.alpha
        # Jᵀu = ∇_Z Σ_l D_i·(u_l A_i) is linear in u, so the derivative of ⟨Jᵀu, v⟩ by u is Jv.
        u = [torch.zeros_like(R).requires_grad_() for R in explained.R]
        transposed = self._slope(Z, traced, alpha, u, keep=True, attached=True)

        def product(v: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
            tangent = geometry.tangent(at, v)
            moved = torch.autograd.grad(transposed, u, tangent, retain_graph=True)
            V = [part / -2 for part in moved]
            layers = explained.layers
            free = self._without(layers, self._coefficients(layers, explained.gram, V), V)
            return geometry.tangent(at, self._slope(Z, traced, alpha, free, keep=True)) / -2

        return product

    def _normal_matrix(
        self, Z: Tensor, geometry: Geometry, explained: ExplainedLayers
    ) -> Float[Tensor, "nr nr"]:
        network = self._network
        assert isinstance(network, MLP)
        n = len(Z)
        ends = [
            network.bent(theta, Z, alpha[:n])
            for theta, alpha in zip(self._thetas, explained.alpha, strict=True)
        ]
        layers = [
            (
                passed,
                [
                    self._moved(bent, geometry, Z)
                    for end in ends
                    for bent in end
                    if bent.layer == layer
                ],
            )
            for layer, passed in zip(self.layers, explained.layers, strict=True)
        ]
        return normal_matrix(layers, explained.gram, self._mix, n)

    def _moved(self, bent: Bent, geometry: Geometry, Z: Tensor) -> Bent:
        """The same with the bias joined, the scale applied, and only moves the geometry allows."""
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
"""From the gradients at θf, θ0 and their middle to the mean, the difference and the bend."""


def layerwise_sizes(evidence: Evidence, names: tuple[str, ...], dtype: torch.dtype) -> Sizes:
    """The sizes of a layerwise objective, found by sending one point through the network."""
    network, theta = evidence.network, cast(evidence.nodes[0], torch.device("cpu"), torch.float64)
    taps = network.taps(theta, torch.zeros(1, evidence.d, dtype=torch.float64))[1]
    layers = tuple(
        (
            tap.A.shape[1],
            tap.A.shape[2] + (tap.layer.bias in names),
            tap.positions(tap.Y).shape[-1],
        )
        for tap in taps
        if not set(tap.layer.names).isdisjoint(names)
    )
    return Sizes(
        r=evidence.d,
        c=evidence.c,
        layers=layers,
        weights=sum(tensor.numel() for tensor in theta.values()),
        units=sum(b for _, _, b in layers),
        families=len(evidence.thetas),
        last=False,
        bends=isinstance(network, MLP),
        itemsize=dtype.itemsize,
    )
