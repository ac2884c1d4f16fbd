"""Whether a sandbox of this cluster holds, tried out with canary pods: observe, decide, act, as for a job."""
