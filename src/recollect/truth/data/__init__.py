"""Data sets to train victims on. Nothing on the attack's side may import this."""
