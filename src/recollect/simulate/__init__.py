"""Training on given data, which attacks may use to simulate how a victim was trained."""
