"""The victim: a network and its weights before and after training. It is the input of every
attack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from recollect.errors import CheckpointError, OptionError, VictimError
from recollect.shapes import Float, Tensor, Theta
from recollect.victim.mlp import MLP
from recollect.victim.module import ModuleNetwork
from recollect.victim.network import Network
from recollect.victim.read.checkpoint import (
    Checkpoint,
    Source,
    bare_names,
    is_extra,
    load_checkpoint,
)
from recollect.victim.read.infer import Architecture, infer_network


class Victim:
    """A network f(·; θ), its weights θ0 and θf, and their difference Δθ = θf − θ0.

    Parameters
    ----------
    model
        A `Network`, or any torch module that ends in a linear layer.
    theta_0
        The weights before training, by name. None for attacks that need only the trained weights.
    theta_f
        The weights after training, by name.
    input_shape
        The shape of one input (channels first). A torch module gets inputs of this shape, and
        images are shown in it.
    run
        The name of the training run, which the files of `recollect train` share. None: not known.
    """

    def __init__(
        self,
        model: Network | nn.Module,
        theta_0: Theta | None,
        theta_f: Theta,
        *,
        input_shape: tuple[int, ...] | None = None,
        run: str | None = None,
    ) -> None:
        self.network: Network = (
            ModuleNetwork(model, theta_f, input_shape) if isinstance(model, nn.Module) else model
        )
        self.theta_0 = None if theta_0 is None else dict(theta_0)
        self.theta_f = dict(theta_f)
        self.input_shape = input_shape
        self.run = run
        _check_names(self.network, self.theta_f)
        if self.theta_0 is not None:
            _check_same(self.theta_0, self.theta_f)

    @classmethod
    def load(
        cls,
        init: Source | None,
        trained: Source,
        *,
        activation: str | None = None,
        model: nn.Module | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> Victim:
        """The same as the function `load`."""
        return load(init, trained, activation=activation, model=model, input_shape=input_shape)

    @classmethod
    def of(
        cls,
        before: Checkpoint | None,
        after: Checkpoint,
        *,
        activation: str | None = None,
        model: nn.Module | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> Victim:
        """The same as `load`, for checkpoints that were read already."""
        theta_0, theta_f = None if before is None else before.tensors, after.tensors
        architecture = Architecture.from_metadata(after.metadata)
        if before is not None:
            _check_same(before.tensors, theta_f)
            if all(torch.equal(before.tensors[name], theta_f[name]) for name in theta_f):
                raise CheckpointError(
                    "expected weights before and after training, got the same weights in "
                    f"{before.path} and "
                    f"{after.path}; give the checkpoint from before training first"
                )
            earlier = Architecture.from_metadata(before.metadata)
            if None not in (architecture.run, earlier.run) and architecture.run != earlier.run:
                raise CheckpointError(
                    f"expected two checkpoints of one training run, got {before.path} and "
                    f"{after.path} of two; train "
                    "again, or give the right pair"
                )
        shape = input_shape or architecture.input_shape
        if model is not None:
            theta_f = _check_model(model, theta_f)
            theta_0 = None if theta_0 is None else _check_model(model, theta_0)
            victim = cls(model, theta_0, theta_f, input_shape=shape, run=architecture.run)
            return victim._with_unmoved_fixed()
        network = infer_network(theta_f, activation or architecture.activation)
        if shape is not None and torch.Size(shape).numel() != network.d:
            shape = None
        victim = cls(network, theta_0, theta_f, input_shape=shape, run=architecture.run)
        return victim._with_unmoved_fixed()

    def _with_unmoved_fixed(self) -> Victim:
        """The victim whose network says of parameters that did not change that they were not
        trained.

        Gradients with respect to such parameters explain nothing: they are not zero, but a change
        that nobody made is.
        """
        if not (unmoved := self.unmoved):
            return self
        if set(unmoved) == set(self.network.trained):
            raise CheckpointError(
                f"expected training to have moved {', '.join(unmoved[:4])}, got a change in other "
                "tensors alone; give the checkpoints of another run, or a model that trains these"
            )
        network = self.network.fixing(unmoved)
        return Victim(
            network, self.theta_0, self.theta_f, input_shape=self.input_shape, run=self.run
        )

    @property
    def unmoved(self) -> tuple[str, ...]:
        """The trained parameters that are the same before and after training."""
        before = self.theta_0
        if before is None:
            return ()
        same = (n for n in self.network.trained if torch.equal(before[n], self.theta_f[n]))
        return tuple(same)

    @property
    def d(self) -> int:
        return self.network.d

    @property
    def c(self) -> int:
        return self.network.c

    def select(self, parameters: str) -> tuple[str, ...]:
        return select(self.network, parameters)

    def delta(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Δθ = θf − θ0 for these parameters, in float64 because the weights nearly cancel."""
        if self.theta_0 is None:
            raise VictimError(
                "expected the weights before training, got none; this attack explains θf − θ0 and "
                "needs θ0"
            )
        return {name: self.theta_f[name].double() - self.theta_0[name].double() for name in names}

    def delta_W1(self) -> Float[Tensor, "p d"] | None:
        """ΔW_1, or None where the first layer is not a trained linear map of the input."""
        first = self.network.first
        if first is None or first.weight not in self.network.trained:
            return None
        return self.delta([first.weight])[first.weight]

    def __repr__(self) -> str:
        return f"Victim({self.describe()})"

    def describe(self) -> str:
        network = self.network
        if not isinstance(network, MLP):
            return f"torch module, {network.d} inputs, {network.c} outputs"
        kind = "random features" if network.scale != 1.0 else f"{network.depth}-layer network"
        biases = "with" if any(layer.bias for layer in network.layers) else "without"
        phi = f"{network.activation} (assumed)" if network.assumed else network.activation
        return f"{kind}, widths {'–'.join(map(str, network.widths))}, {phi}, {biases} biases"


def load(
    init: Source | None,
    trained: Source,
    *,
    activation: str | None = None,
    model: nn.Module | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Victim:
    """Make a victim from the weights before and after training.

    Parameters
    ----------
    init
        θ0: a `.safetensors` or `.pt` file, a state dict of tensors or numpy arrays, or a module.
        None: not known.
    trained
        θf, likewise.
    activation
        The network's activation. None: the one that the file names (as files made by Recollect do),
        or else ReLU.
    model
        The torch module whose weights these are. None: a plain MLP, inferred from the shapes of the
        weights.
    input_shape
        The shape of one input to `model`, for instance (3, 32, 32).

    Returns
    -------
    Victim
        The input of every attack. No code in a file is executed.
    """
    after = load_checkpoint(trained)
    before = None if init is None else load_checkpoint(init)
    return Victim.of(before, after, activation=activation, model=model, input_shape=input_shape)


def _check_names(network: Network, theta: Theta) -> None:
    missing = [name for name in (*network.last.names, *network.trained) if name not in theta]
    if missing:
        raise CheckpointError(
            f"expected parameters {', '.join(missing[:4])} in the weights, got "
            f"{', '.join(list(theta)[:4])}; give "
            "the model's own state dict"
        )


def _check_model(model: nn.Module, theta: Theta) -> dict[str, Tensor]:
    """The weights under the model's own names, which may have a prefix that reading removed."""
    own = {name: value for name, value in model.state_dict().items() if not is_extra(name)}
    full = {bare: name for name, bare in bare_names(own).items()}
    theta = {full.get(name, name): value for name, value in theta.items()}
    problems = [f"{name} in the model alone" for name in own if name not in theta]
    problems += [f"{name} in the file alone" for name in theta if name not in own]
    problems += [
        f"{name} {_form(own[name])} in the model and {_form(theta[name])} in the file"
        for name in own
        if name in theta and _form(own[name]) != _form(theta[name])
    ]
    if problems:
        raise CheckpointError(
            f"expected the weights of the model given, got {'; '.join(problems[:4])}: give the "
            "model that was trained"
        )
    return theta


def differences(theta_0: Theta, theta_f: Theta) -> list[str]:
    """All differences between two checkpoints in the names, shapes and kinds of their tensors."""
    problems = [f"{name} only before training" for name in theta_0 if name not in theta_f]
    problems += [f"{name} only after training" for name in theta_f if name not in theta_0]
    problems += [
        f"{name} {_form(theta_0[name])} before and {_form(theta_f[name])} after"
        for name in theta_f
        if name in theta_0 and _form(theta_0[name]) != _form(theta_f[name])
    ]
    return problems


def _form(tensor: Tensor) -> str:
    """The shape, and the dtype unless it is a float: float32 may become float16, but not an
    integer."""
    kind = "" if tensor.is_floating_point() else f" {tensor.dtype}".replace("torch.", "")
    return f"{list(tensor.shape)}{kind}"


def _check_same(theta_0: Theta, theta_f: Theta) -> None:
    if problems := differences(theta_0, theta_f):
        shown = "; ".join(problems[:6]) + (
            f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
        )
        raise CheckpointError(
            f"expected two checkpoints of one network, got {shown}: give two checkpoints of the "
            "same training run"
        )


def attackable(network: Network) -> tuple[str, ...]:
    """The choices of parameters that an audit tries: `last` where the last layer was trained and
    its gradient is that of a linear layer, and `all` where others were trained."""
    last = network.last.weight
    if last not in network.trained or last in network.untapped:
        return ("all",)
    return ("last",) if set(network.trained) <= set(network.last.names) else ("last", "all")


def select(network: Network, parameters: str) -> tuple[str, ...]:
    """Parameter names for `last`, `all`, or a comma-separated list of tensors or layers."""
    if parameters == "last":
        if network.last.weight not in network.trained:
            raise VictimError(
                f"expected training to have moved the last layer ({network.last.weight}), got no "
                "change; use --parameters all"
            )
        return tuple(name for name in network.last.names if name in network.trained)
    if parameters == "all":
        return network.trained
    chosen = []
    for word in parameters.split(","):
        found = [name for name in network.trained if name == word or name.startswith(f"{word}.")]
        if not found:
            raise OptionError(
                f"expected last, all, or names out of {', '.join(network.trained)}, got {word!r}; "
                "choose from those"
            )
        chosen += found
    return tuple(dict.fromkeys(chosen))
