"""Getting rollouts: one protocol, two implementations, and one decision between them (the placement)."""

from .protocol import AggregatesMissing, Collector, Record

__all__ = ["AggregatesMissing", "Collector", "Record"]
