"""Finds everything that prevents or limits an audit of two checkpoints, each with a remedy.

Reading a checkpoint ends at the first error, but a person who must correct a file wants to know all
of them. So nothing here raises an error: what stops an audit is a finding like any other, and the
victim is returned if no finding does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from recollect.errors import CheckpointError, RecollectError
from recollect.examine.exchanged import counted_backwards, exchanged
from recollect.examine.findings import Finding, Severity
from recollect.shapes import Tensor
from recollect.victim.mlp import MLP
from recollect.victim.read.checkpoint import Checkpoint, Source, check_tensor, read_checkpoint
from recollect.victim.victim import Victim, differences

_SHOWN = 3


@dataclass(frozen=True)
class Validation:
    victim: Victim | None
    """None where a finding stops the audit."""
    findings: tuple[Finding, ...]


def validate(
    init: Source | None,
    trained: Source,
    *,
    activation: str | None = None,
    model: nn.Module | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Validation:
    findings: list[Finding] = []
    read: list[Checkpoint] = []
    if init is None:
        findings.append(_NO_START)
    for path in (init, trained):
        if path is None:
            continue
        try:
            read.append(checkpoint := read_checkpoint(path))
        except CheckpointError as error:
            findings.append(
                replace(stop(str(error)), severity=Severity.UNREADABLE, code="unreadable")
            )
            continue
        findings += [finding for finding in _of_names(checkpoint) if finding not in findings]
        findings += _of_tensors(checkpoint)
    if len(read) == 2 and (problems := differences(*map(_shown, read))):
        shown = "; ".join(problems[:_SHOWN]) + (
            f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        )
        findings.append(
            Finding(
                Severity.STOPS,
                f"the two checkpoints do not hold the same tensors ({shown})",
                "there is no change to explain",
                "give two checkpoints of the same training run",
                code="different-tensors",
            )
        )
    if model is not None:
        findings += [finding for finding in _of_layers(model) if finding not in findings]
    if any(finding.severity is not Severity.LIMITS for finding in findings):
        return Validation(None, tuple(findings))
    try:
        before, after = read
        victim = Victim.of(
            before, after, activation=activation, model=model, input_shape=input_shape
        )
    except RecollectError as error:
        return Validation(None, (*findings, stop(str(error))))
    if exchanged(victim) or counted_backwards(before, after):
        findings.append(_EXCHANGED)
    return Validation(victim, (*findings, *_of_unmoved(victim), *_of_rules(victim)))


_NO_START = Finding(
    Severity.STOPS,
    "there are no weights from before training",
    "the attack explains θf − θ0 and needs both",
    "give the first checkpoint, or make it again from the seed of the initialisation",
    code="no-start",
)
_EXCHANGED = Finding(
    Severity.LIMITS,
    "the two checkpoints seem to be exchanged: the second looks as before its first step, and the "
    "first looks trained",
    "the change is taken backwards, and what is not found tells nothing",
    "give the weights from before training first, then those from after it",
    misfit=True,
    code="exchanged",
)
_LORA = Finding(
    Severity.STOPS,
    "there are LoRA adapters among the weights",
    "their product is the change, and gradients of the factors are not gradients of the weights",
    "merge the adapters into the weights and audit those against the weights before",
    code="adapters",
    reason="adapter",
)
_QUANTISED = Finding(
    Severity.STOPS,
    "the weights are quantised",
    "what training changed is below their resolution, or in scales that are not weights",
    "audit the weights before quantisation; to learn what quantised weights give away, dequantise "
    "them to floats",
    code="quantised",
)
_OPTIMISER = Finding(
    Severity.LIMITS,
    "an optimiser's running averages lie beside the weights",
    "training was not plain gradient descent: Δθ is a combination of gradients that were rescaled "
    "entry by entry",
    "publish without them; expect less than this method finds for plain gradient descent",
    misfit=True,
    code="optimiser-state",
)
_BATCH_NORM = Finding(
    Severity.LIMITS,
    "there are BatchNorm layers",
    "while they trained, each gradient depended on its whole batch; here the network is taken as "
    "it is in evaluation "
    "mode",
    "read what is not found with that in mind",
    code="batch-norm",
    reason="layer",
)
_SPOKEN: tuple[tuple[re.Pattern[str], Finding], ...] = (
    (re.compile(r"lora_|\.lora|adapter"), _LORA),
    (
        re.compile(
            r"_packed_params|qweight|qzeros|zero_point|quant_state|absmax|weight_scale|\.SCB$"
        ),
        _QUANTISED,
    ),
    (re.compile(r"(^|\.)(exp_avg|exp_avg_sq|exp_inf|square_avg)$"), _OPTIMISER),
    (re.compile(r"running_mean$|num_batches_tracked$"), _BATCH_NORM),
)
"""Findings that follow from names. A `momentum_buffer` alone is not a finding: with momentum, Δθ is
still a sum of gradients."""
_LAYERS: tuple[tuple[tuple[type[nn.Module], ...], Callable[[str], Finding]], ...] = (
    ((nn.modules.batchnorm._BatchNorm,), lambda name: _named(_BATCH_NORM, name)),
    (
        (nn.modules.dropout._DropoutNd,),
        lambda name: Finding(
            Severity.LIMITS,
            f"there is dropout ({name})",
            "training saw other random parts of the network at each step; gradients here are of "
            "the whole",
            "read what is not found with that in mind",
            code="dropout",
            reason="layer",
        ),
    ),
    (
        (nn.Embedding, nn.EmbeddingBag),
        lambda name: Finding(
            Severity.STOPS,
            f"the network looks its inputs up in a table ({name})",
            "inputs are words, not points, and cannot be moved step by step",
            "audit the part of the network after the table, with its outputs as inputs",
            code="table-of-inputs",
            reason="layer",
        ),
    ),
    (
        (nn.RNNBase, nn.MultiheadAttention),
        lambda name: Finding(
            Severity.LIMITS,
            f"there is a layer that has no rule here ({name})",
            "gradients of all layers take conjugate gradients, and the search is the paper's "
            "gradient descent",
            "the last layer is attacked as usual",
            code="recurrent-or-attention",
            reason="layer",
        ),
    ),
)


def stop(message: str) -> Finding:
    """The finding that a message is, whose remedy follows its last semicolon."""
    seen, _, remedy = message.rpartition("; ")
    return Finding(
        Severity.STOPS,
        seen or message,
        "nothing can be said of this model",
        remedy if seen else "check it",
        code="cannot-be-audited",
    )


def _shown(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors whose names can be printed. The others are reported as separate findings."""
    return {
        name: one
        for name, one in checkpoint.tensors.items()
        if name.isprintable() and len(name) <= 200
    }


def _of_names(checkpoint: Checkpoint) -> Iterable[Finding]:
    for pattern, finding in _SPOKEN:
        beside = checkpoint.beside if finding is _OPTIMISER else ()
        names = [name for name in (*checkpoint.tensors, *beside) if pattern.search(name)]
        if names:
            batch = finding is _BATCH_NORM
            yield _named(finding, names[0].rpartition(".")[0]) if batch else finding


def _named(finding: Finding, name: str) -> Finding:
    """The same finding, with the layer that it is about."""
    return replace(finding, seen=f"{finding.seen} ({name})") if name else finding


def _of_tensors(checkpoint: Checkpoint) -> Iterable[Finding]:
    """Findings on the first few tensors of a file that cannot be used, and on low precision."""
    path, state = checkpoint.path, checkpoint.tensors
    unusable, integers = [], False
    for name, tensor in state.items():
        try:
            check_tensor(path, name, tensor)
        except CheckpointError as error:
            if tensor.dtype in (torch.int8, torch.uint8, torch.int32, torch.qint8, torch.quint8):
                integers = True
            else:
                unusable.append(stop(str(error)))
    if integers and not any(_SPOKEN[1][0].search(name) for name in state):
        yield _QUANTISED
    yield from unusable[:_SHOWN]
    coarse = {tensor.dtype for tensor in state.values()} & {torch.float16, torch.bfloat16}
    if coarse:
        kinds = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in coarse))
        digits = 2 if torch.bfloat16 in coarse else 3
        yield Finding(
            Severity.LIMITS,
            f"{path.name} holds {kinds}",
            f"weights are known to {digits} digits, and their change to fewer",
            "if the weights were trained in float32, audit those too: they tell more",
            code="half-precision",
        )


def _of_layers(model: nn.Module) -> Iterable[Finding]:
    said: set[str] = set()
    for name, layer in model.named_modules():
        for kinds, finding in _LAYERS:
            dropped = isinstance(layer, nn.modules.dropout._DropoutNd) and not layer.p
            made = finding(name or type(layer).__name__)
            if isinstance(layer, kinds) and not dropped and made.consequence not in said:
                said.add(made.consequence)
                yield made


def _of_unmoved(victim: Victim) -> Iterable[Finding]:
    """Finding on layers that training did not move."""
    network = victim.network
    if isinstance(network, MLP) and network.scale != 1.0:  # random features: that is what they are
        return
    same = [
        name
        for name, value in victim.theta_f.items()
        if value.is_floating_point()
        and name not in network.trained
        and torch.equal(victim.theta_0[name] if victim.theta_0 else value, value)
    ]
    if same:
        yield Finding(
            Severity.LIMITS,
            f"training did not move {_listed(same)}",
            "they are taken as frozen, and the attack explains the change of the others",
            "if they were trained, give the checkpoints from before and after all of it",
            code="not-moved",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _of_rules(victim: Victim) -> Iterable[Finding]:
    if victim.network.first is None:
        weights = [name for name, value in victim.theta_f.items() if value.dim() >= 2]
        # A linear layer may be applied to parts of the input or several times; a convolution is.
        parts = bool(weights) and victim.theta_f[weights[0]].dim() == 2
        yield Finding(
            Severity.LIMITS,
            "the first layer is no linear map of the whole input, or is used more than once"
            f"{f' ({weights[0]})' if weights else ''}",
            "its change does not show the span of the data: points are sought in all "
            f"{victim.d} dimensions of an input",
            "nothing to do",
            code="first-layer-of-parts",
            reason="layer" if parts and not isinstance(victim.network, MLP) else None,
        )
    if untapped := victim.network.untapped:
        yield Finding(
            Severity.LIMITS,
            f"some layers have no rule here ({_listed(untapped)})",
            "gradients of all layers take conjugate gradients, and the search is the paper's "
            "gradient descent",
            "the last layer is attacked as usual",
            code="layer-without-rule",
            reason="layer",
        )
