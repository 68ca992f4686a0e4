"""Solvers: how to move the candidates. One loop (`solve/loop.py`), one file a method."""

from recollect.solve.gradient_descent import GradientDescent, paper_step
from recollect.solve.levenberg_marquardt import LevenbergMarquardt
from recollect.solve.loop import JITTERS, Outcome, Run, Solver, Status, minimise, start

__all__ = [
    "JITTERS",
    "GradientDescent",
    "LevenbergMarquardt",
    "Outcome",
    "Run",
    "Solver",
    "Status",
    "minimise",
    "paper_step",
    "start",
]
