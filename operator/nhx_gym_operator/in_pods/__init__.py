"""What the programs in a job's pods, the trusted and the untrusted one, have in common."""
