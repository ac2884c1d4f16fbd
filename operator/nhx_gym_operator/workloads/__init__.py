"""Builders of the objects that make up a job: pure functions from plain values to plain dicts."""
