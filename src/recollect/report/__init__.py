"""What people look at: the report, its plots and pictures."""
