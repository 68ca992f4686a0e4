"""Solvers: how to move the candidates. One loop (`solve/loop.py`), one file per method."""
