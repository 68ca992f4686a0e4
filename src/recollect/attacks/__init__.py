"""Attacks: one contract (`base.py`), the paper's attack (`projection.py`) and the exact search
(`exact/`)."""
