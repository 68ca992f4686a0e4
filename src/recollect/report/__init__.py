"""The HTML reports, with their plots and pictures."""
