"""Solvers, which move the candidates. All share one loop (`loop.py`); each method has one file."""
