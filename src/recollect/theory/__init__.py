"""Finite-width recovery for random features: the paper's lemma, theorem and corollary, and the
quantities that they use."""
