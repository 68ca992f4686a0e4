"""`recollect audit`: can the data be read out of these weights?"""

from recollect.audit.forecast import Forecast, outlook
from recollect.audit.run import Attempt, Audit, NullRun, Setting, audit
from recollect.audit.verdict import ANSWERS, CALLED, Verdict, caveats, judge, judge_by_truth

__all__ = [
    "ANSWERS",
    "CALLED",
    "Attempt",
    "Audit",
    "Forecast",
    "NullRun",
    "Setting",
    "Verdict",
    "audit",
    "caveats",
    "judge",
    "judge_by_truth",
    "outlook",
]
