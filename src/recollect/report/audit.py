"""The audit's page: verdict first, then what it rests on."""

from __future__ import annotations

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
    True: (
        "Do not publish the weights from before training, nor the seed that made them: this method needs them.",
        "Train with differential privacy: it gives a guarantee, which no audit can.",
        "Use a narrower network or more data: with fewer weights than the data have numbers nothing can be solved for.",
        "After any change, audit again: whether it helped is to be measured.",
    ),
    False: (
        "Keep the weights from before training to yourself all the same: it costs nothing.",
        "Audit again with more time (--budget), with the number of training points (--n), and after every change of "
        "how the model is trained.",
        "For a guarantee, train with differential privacy: no audit can give one.",
    ),
}


def render_audit(
    done: Audit | None,
    findings: tuple[Finding, ...],
    verdict: Verdict,
    record: Record | None = None,
    truth: Truth | None = None,
    score: Score | None = None,
) -> str:
    """`done` None: something stopped the audit before it began."""
    calls = None if done is None else done.called
    pairs = [] if record is None else image_pairs(record, truth, score, SHOWN)
    sections: dict[str, Any] = {
        "verdict": verdict.value,
        "grave": verdict in (Verdict.EXPOSED, Verdict.PARTLY),
        "answer": ANSWERS[verdict],
        "summary": _summary(done, score),
        "victim": "" if done is None else done.inspection.description,
        "meaning": _MEANING[verdict],
        "advice": _ADVICE[verdict in (Verdict.EXPOSED, Verdict.PARTLY)],
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


def _summary(done: Audit | None, score: Score | None) -> str:
    """One sentence that claims no more than was seen."""
    if score is not None:
        n = len(score.errors)
        return f"{round(score.recovered * n)} of {n} training inputs were read back with an error below {RECOVERED:g}."
    calls = None if done is None else done.called
    if done is None or calls is None:
        return "Nothing was reconstructed."
    sign = ", up to its sign (an image may be its negative)" if done.up_to_sign else ""
    more = 0 if done.best is None else done.best.likely - done.best.recovered
    rest = (
        f" {more} more are held as points of null victims are not: many of them are near a training input."
        if more
        else ""
    )
    return (
        f"{int(calls.sum())} of {len(calls)} candidates are held so firmly by the weights that each is very likely a "
        f"training input{sign}.{rest}"
    )
