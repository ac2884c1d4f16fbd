"""The way out of a sandbox whose environment needs more than models: a forward proxy to hosts that the job may reach.

It stands at the evaluator's one port, so that the sandbox's own network stays as narrow as it is. http is passed on
request by request; for https there are tunnels (CONNECT), and the TLS in one has to name the host that was asked for.
Names are looked up here, and what is connected to is the address that was checked. Each request is a line of
`egress.jsonl` in the bundle: what could not be logged is refused.
"""

from .forwarding import EgressRefused, is_forwarded
from .proxy import EGRESS_LOG, EgressProxy

__all__ = ["EGRESS_LOG", "EgressProxy", "EgressRefused", "is_forwarded"]
