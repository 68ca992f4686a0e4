"""Reading files that may be hostile."""
