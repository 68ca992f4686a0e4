"""Studies: plans of many runs, their execution, and the tables and figures of their results."""
