"""Checkpoints and networks: what an attack is given."""
