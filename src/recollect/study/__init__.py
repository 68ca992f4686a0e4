"""Studies: plans of many runs, how they are carried out, and what is made of their results."""
