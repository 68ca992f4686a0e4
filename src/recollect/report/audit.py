"""The HTML page of an audit: the verdict first, then the evidence for it."""

from __future__ import annotations

from typing import Any

from recollect.auditing.result import Audit
from recollect.auditing.verdict import CALLED, RECOGNISABLE, Level, Verdict
from recollect.examine.findings import Severity
from recollect.records import versions
from recollect.report.figures import confidence_plot, error_plot, loss_trace, spectrum_plot
from recollect.report.html import SHOWN, Pair, hidden, image_pairs, page
from recollect.report.pictures import data_uri
from recollect.truth.metrics import NEAR, RECOVERED

_MEANING = {
    Verdict.EXPOSED: (
        "Whoever has these weights and those from before training can repeat what was done here, "
        "without any of your "
        "data. Treat publishing the two as publishing the training inputs."
    ),
    Verdict.PARTLY: (
        "Whoever has these weights and those from before training can repeat what was done here. "
        "Others of your "
        "inputs may come out with more time or better methods."
    ),
    Verdict.NOT_FOUND: (
        "This shows what one method did not find in the time it had. It is no proof that the data "
        "are safe: more time, "
        "knowledge of the data, or another method may find more."
    ),
    Verdict.UNKNOWN: (
        "The method does not fit this model, it had too little time, or what it finds in null "
        "victims looks no "
        "different. What was seen is listed below."
    ),
    Verdict.INTERRUPTED: (
        "Nothing follows from an audit that did not run to its end. What was tried until then is "
        "listed below."
    ),
}
_ADVICE = {
    Verdict.EXPOSED: (
        "Do not publish the weights from before training, nor the seed that made them: this method "
        "needs them.",
        "Train with differential privacy: it gives a guarantee, which no audit can.",
        "Use a narrower network or more data: with fewer weights than the data have numbers "
        "nothing can be solved for.",
        "After any change, audit again: whether it helped is to be measured.",
    ),
    Verdict.NOT_FOUND: (
        "Keep the weights from before training to yourself all the same: it costs nothing.",
        "Audit again with more time (--budget), with the number of training points (--n), and "
        "after every change of "
        "how the model is trained.",
        "For a guarantee, train with differential privacy: no audit can give one.",
    ),
    Verdict.UNKNOWN: (
        "Do not take this for safety: nothing was learned about the data.",
        "Mend what the findings name and audit again; where the method does not fit, another has "
        "to answer.",
        "For a guarantee, train with differential privacy: no audit can give one.",
    ),
}
_ADVICE[Verdict.PARTLY] = _ADVICE[Verdict.EXPOSED]
_ADVICE[Verdict.INTERRUPTED] = ("Do not take this for safety: run the audit again, to its end.",)
_NOT_IN_WEIGHTS = (
    "What a state dict does not say can hide data from this audit: the activation (--activation), "
    "dropout, the "
    "optimiser. If any of them is not as assumed, say so or read the verdict with that in mind."
)


def render_audit(done: Audit) -> str:
    """The page of an audit, including one that was stopped by a finding."""
    calls, verdict, findings, score = done.called, done.verdict, done.findings, done.score
    record, found = done.record(), done.reconstruction
    pairs = [] if record is None else image_pairs(record, done.truth, score, SHOWN)
    sections: dict[str, Any] = {
        "verdict": verdict.value,
        "grave": verdict in (Verdict.EXPOSED, Verdict.PARTLY),
        "answer": done.answer,
        "summary": _summary(done),
        "unseen": next((one for one in findings if one.code == "number-not-visible"), None),
        "victim": "" if done.outcome is None else done.outcome.inspection.description,
        "meaning": _MEANING[verdict],
        "advice": (
            *_ADVICE[verdict],
            *((_NOT_IN_WEIGHTS,) if verdict is Verdict.NOT_FOUND else ()),
        ),
        "subject": done.subject,
        "stops": [finding for finding in findings if finding.severity is Severity.STOPS],
        "limits": [finding for finding in findings if finding.severity is Severity.LIMITS],
        "done": done.outcome,
        "score": score,
        "pairs": [
            {
                "number": pair.number,
                "error": pair.error,
                "confidence": pair.confidence,
                "mark": _mark(pair, done.levels),
                "true": None if pair.true is None else data_uri(pair.true),
                "recovered": None if pair.recovered is None else data_uri(pair.recovered),
            }
            for pair in pairs
        ],
        "hidden": hidden(record, score) if record is not None and pairs else 0,
        "confidence": None
        if found is None or found.confidence is None
        else confidence_plot(found.confidence.tolist(), CALLED),
        "trace": None if record is None else loss_trace(record.trace.tolist()),
        "spectrum": None
        if record is None or record.singular_values is None
        else spectrum_plot(record.singular_values.tolist(), record.facts.get("rank")),
        "errors": None
        if score is None
        else error_plot(score.errors.tolist(), RECOVERED, score.chance.get("span")),
        "notes": [] if found is None else found.notes,
        "versions": versions(),
        "called": None if calls is None else int(calls.sum()),
        "threshold": RECOVERED,
        "level": CALLED,
        "near": NEAR,
        "recognisable": RECOGNISABLE,
    }
    return page("audit.html.j2", sections)


def _points(count: int, one: str = "point is", several: str = "points are") -> str:
    return f"1 {one}" if count == 1 else f"{count} {several}"


def _mark(pair: Pair, known: tuple[Level, ...]) -> str:
    """The class that colours a picture's number: by its error, or by its level without truth."""
    if pair.error is not None:
        level = "recovered" if pair.error < RECOVERED else "recognisable"
        return _MARKS[level if pair.error < NEAR else "none"]
    return _MARKS[known[pair.number - 1]] if known else "bad"


_MARKS = {"recovered": "good", "recognisable": "near", "none": "bad"}


def no_false_alarm_test(done: Audit) -> str:
    """A sentence where no attack on a null victim ran to its end; empty where one did."""
    if done.outcome is None or done.outcome.false_alarm_test:
        return ""
    return (
        " There was no false-alarm test: no attack on a null victim ran to its end, so how often "
        "the method errs on this model is not known."
    )


def _summary(done: Audit) -> str:
    """A few sentences that claim no more than was observed."""
    calls, outcome, found = done.called, done.outcome, done.reconstruction
    if outcome is None or found is None or calls is None:
        return "Nothing was reconstructed."
    called = int(calls.sum())
    sign = ", up to its sign (an image may be its negative)" if outcome.up_to_sign else ""
    if done.score is not None:
        recovered, right = done.right()
        return (
            f"{recovered} of {len(done.score.errors)} training inputs were read back with an error "
            "below "
            f"{RECOVERED:g}{sign}. Without the truth {called} of {len(calls)} candidates would be "
            "called recovered; "
            f"{right} of them are.{no_false_alarm_test(done)}"
        )
    near = outcome.recognisable
    more = 0 if near is None else int(near.sum()) - called
    if more:
        rest = f" {_points(more, 'more is', 'more are')} recognisable: roughly a training input."
    elif called and done.verdict is Verdict.NOT_FOUND:
        rest = " That is no more than chance would call."
    else:
        rest = ""
    reasons: dict[str, set[int]] = {}
    for withheld in found.withheld:
        reasons.setdefault(withheld.why, set()).update(withheld.points)
    for why, points in reasons.items():
        some = "No point is" if len(points) == len(calls) else f"{_points(len(points))} not"
        rest += f" {some} called recovered because {why}."
    rest += no_false_alarm_test(done)
    return (
        f"{called} of {len(calls)} candidates are held so firmly by the weights that each is very "
        "likely a training "
        f"input{sign}.{rest}"
    )
