"""The control loop: observe what exists for a job, decide purely, act idempotently."""
