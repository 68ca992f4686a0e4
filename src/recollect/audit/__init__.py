"""`recollect audit`: can the data be read out of these weights?"""

from recollect.audit.forecast import Forecast, outlook
from recollect.audit.run import Attempt, Audit, NullRun, Setting, audit
from recollect.audit.verdict import ANSWERS, CALLED, Verdict, judge

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
    "judge",
    "outlook",
]
