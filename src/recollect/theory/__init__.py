"""Finite-width recovery for random features: the paper's lemma, theorem and corollary, and what they rest on."""

from recollect.theory.bounds import (
    Lemma,
    log_recovery_epsilon,
    log_recovery_width,
    subspace_separation,
    whole,
)
from recollect.theory.constant import log_C
from recollect.theory.deviation import deviation, features
from recollect.theory.discrepancy import Chain, chain, mmd
from recollect.theory.kernel import BOUNDED, Bounded, Zonal, bounded, k_infinity, k_slope, price
from recollect.theory.spectrum import bump, hermite, log_eigenvalues

__all__ = [
    "BOUNDED",
    "Bounded",
    "Chain",
    "Lemma",
    "Zonal",
    "bounded",
    "bump",
    "chain",
    "deviation",
    "features",
    "hermite",
    "k_infinity",
    "k_slope",
    "log_C",
    "log_eigenvalues",
    "log_recovery_epsilon",
    "log_recovery_width",
    "mmd",
    "price",
    "subspace_separation",
    "whole",
]
