"""Where clouds serve an instance's credentials: no pod of a job has any business there."""

from __future__ import annotations

LINK_LOCAL = "169.254.169.254"
"""The same at all of the large ones."""
OUTSIDE_LINK_LOCAL = ("fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
"""AWS by IPv6, Alibaba Cloud, Oracle Cloud, Azure's wire server."""
