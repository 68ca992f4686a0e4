"""Training without data of its own: what attacks may use to simulate how a victim came about."""
