"""What people look at: the report, its plots and pictures."""

from recollect.report.audit import by_truth, render_audit
from recollect.report.html import image_pairs, render, summary
from recollect.report.pictures import sheet

__all__ = ["by_truth", "image_pairs", "render", "render_audit", "sheet", "summary"]
