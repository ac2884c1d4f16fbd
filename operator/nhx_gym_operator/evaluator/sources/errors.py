"""What can be wrong with a source."""

from __future__ import annotations


class StagingError(ValueError):
    """A FileSet that cannot be staged. Names the file or field, and the rule."""
