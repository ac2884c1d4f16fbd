"""What a failed start of Gym says of its node, and of nothing that the job could mend."""

from __future__ import annotations

import re

NODE_TOO_BUSY = re.compile(r"current node timed out during startup|GCS has become overloaded")
"""Ray waits 30 s for its own processes, fixed in its code, and ends with these words
(`raylet_start_wait_time_s` in ray/_private/node.py of Ray 2.60)."""

TOO_BUSY = "the node was too busy for Gym to start"
"""What a job's status says of such a start, ahead of Ray's own words."""
