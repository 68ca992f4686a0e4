"""Objectives: how well gradients at some points explain the evidence (`objective/base.py`).

Each file that defines an objective represents the matrix G of gradients in its own way; all of them
fulfil one contract.
"""
