"""What the files say before any attack: findings, history, the subspace of the data, counting."""
