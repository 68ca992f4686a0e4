"""The audit's page: verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.audit import ANSWERS, CALLED, Audit, Verdict
from recollect.metrics import RECOVERED, Score
from recollect.records import Record
from recollect.report.figures import confidence_plot, error_plot, loss_trace, spectrum_plot
from recollect.report.html import SHOWN, hidden, image_pairs, page
from recollect.report.pictures import data_uri
from recollect.truth import Truth
from recollect.victim.validate import Finding, Severity

_MEANING = {
    Verdict.EXPOSED: (
        "Whoever has these weights and those from before training can repeat what was done here, without any of your "
        "data. Treat publishing the two as publishing the training inputs."
    ),
    Verdict.PARTLY: (
        "Whoever has these weights and those from before training can repeat what was done here. Others of your "
        "inputs may come out with more time or better methods."
    ),
    Verdict.NOT_FOUND: (
        "This shows what one method did not find in the time it had. It is no proof that the data are safe: more time, "
        "knowledge of the data, or another method may find more."
    ),
    Verdict.UNKNOWN: (
        "The method does not fit this model, it had too little time, or what it finds in null victims looks no "
        "different. What was seen is listed below."
    ),
}
_ADVICE = {
    Verdict.EXPOSED: (
        "Do not publish the weights from before training, nor the seed that made them: this method needs them.",
        "Train with differential privacy: it gives a guarantee, which no audit can.",
        "Use a narrower network or more data: with fewer weights than the data have numbers nothing can be solved for.",
        "After any change, audit again: whether it helped is to be measured.",
    ),
    Verdict.NOT_FOUND: (
        "Keep the weights from before training to yourself all the same: it costs nothing.",
        "Audit again with more time (--budget), with the number of training points (--n), and after every change of "
        "how the model is trained.",
        "For a guarantee, train with differential privacy: no audit can give one.",
    ),
    Verdict.UNKNOWN: (
        "Do not take this for safety: nothing was learned about the data.",
        "Mend what the findings name and audit again; where the method does not fit, another has to answer.",
        "For a guarantee, train with differential privacy: no audit can give one.",
    ),
}
_ADVICE[Verdict.PARTLY] = _ADVICE[Verdict.EXPOSED]
_NOT_IN_WEIGHTS = (
    "What a state dict does not say can hide data from this audit: the activation (--activation), dropout, the "
    "optimiser. If any of them is not as assumed, say so or read the verdict with that in mind."
)


def by_truth(done: Audit, score: Score) -> tuple[int, int]:
    """How many training points came back, and how many of the points called are one; up to sign where that is open."""
    errors, closest = (
        (score.errors_up_to_sign, score.closest_up_to_sign) if done.up_to_sign else (score.errors, score.closest)
    )
    right = 0 if done.called is None else int((done.called & (closest < RECOVERED)).sum())
    return int((errors < RECOVERED).sum()), right


def render_audit(
    done: Audit | None,
    findings: tuple[Finding, ...],
    verdict: Verdict,
    record: Record | None = None,
    truth: Truth | None = None,
    score: Score | None = None,
    subject: Mapping[str, Any] | None = None,
) -> str:
    """`done` None: something stopped the audit before it began. `subject`: the files, the options, the date."""
    calls = None if done is None else done.called
    pairs = [] if record is None else image_pairs(record, truth, score, SHOWN)
    sections: dict[str, Any] = {
        "verdict": verdict.value,
        "grave": verdict in (Verdict.EXPOSED, Verdict.PARTLY),
        "answer": ANSWERS[verdict],
        "summary": _summary(done, verdict, score),
        "victim": "" if done is None else done.inspection.description,
        "meaning": _MEANING[verdict],
        "advice": (*_ADVICE[verdict], *((_NOT_IN_WEIGHTS,) if verdict is Verdict.NOT_FOUND else ())),
        "subject": subject,
        "stops": [finding for finding in findings if finding.severity is Severity.STOPS],
        "limits": [finding for finding in findings if finding.severity is Severity.LIMITS],
        "done": done,
        "score": score,
        "pairs": [
            {
                "number": pair.number,
                "error": pair.error,
                "confidence": pair.confidence,
                "good": pair.error < RECOVERED if pair.error is not None else (pair.confidence or 0.0) >= CALLED,
                "true": None if pair.true is None else data_uri(pair.true),
                "recovered": None if pair.recovered is None else data_uri(pair.recovered),
            }
            for pair in pairs
        ],
        "hidden": hidden(record, score) if record is not None and pairs else 0,
        "confidence": None
        if record is None or record.confidence is None
        else confidence_plot(record.confidence.tolist(), CALLED),
        "trace": None if record is None else loss_trace(record.trace.tolist()),
        "spectrum": None
        if record is None or record.singular_values is None
        else spectrum_plot(record.singular_values.tolist(), int(record.facts.get("rank", 1))),
        "errors": None if score is None else error_plot(score.errors.tolist(), RECOVERED, score.chance.get("span")),
        "notes": [] if record is None else record.facts.get("notes", []),
        "facts": {} if record is None else record.facts,
        "called": None if calls is None else int(calls.sum()),
        "threshold": RECOVERED,
        "level": CALLED,
    }
    return page("audit.html.j2", sections)


def _summary(done: Audit | None, verdict: Verdict, score: Score | None) -> str:
    """A sentence or two that claim no more than was seen."""
    calls = None if done is None else done.called
    if done is None or calls is None:
        return "Nothing was reconstructed."
    called = int(calls.sum())
    sign = ", up to its sign (an image may be its negative)" if done.up_to_sign else ""
    if score is not None:
        recovered, right = by_truth(done, score)
        return (
            f"{recovered} of {len(score.errors)} training inputs were read back with an error below {RECOVERED:g}"
            f"{sign}. Without the truth {called} of {len(calls)} candidates would be called recovered; {right} of them "
            "are."
        )
    if done.best is not None and verdict is Verdict.PARTLY and done.best.likely > called:
        rest = f" {done.best.likely - called} more are held as points of null victims are not: many are near one."
    elif called and verdict is Verdict.NOT_FOUND:
        rest = " That is no more than chance would call."
    else:
        rest = ""
    if not done.nulls:
        rest += " No null victim was attacked in the time: how often the method errs on this model is not known."
    return (
        f"{called} of {len(calls)} candidates are held so firmly by the weights that each is very likely a training "
        f"input{sign}.{rest}"
    )
