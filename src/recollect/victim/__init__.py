"""Checkpoints and networks, which are the input of an attack."""
