"""One module per question that a decision answers. Pure functions: no I/O, no clock of their own."""
