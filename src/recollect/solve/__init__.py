"""Solvers: how to move the candidates. One loop (`solve/loop.py`), one file a method."""

from recollect.solve.gradient_descent import GradientDescent, paper_step
from recollect.solve.loop import Outcome, Run, Solver, Status, minimise, start

__all__ = ["GradientDescent", "Outcome", "Run", "Solver", "Status", "minimise", "paper_step", "start"]
