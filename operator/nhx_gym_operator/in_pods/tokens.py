"""Whether a caller has the token that it must have: the one place where a credential is compared."""

from __future__ import annotations

import hmac


def is_same(given: str, token: str) -> bool:
    """In a time that says nothing of how much of `given` was right. What is no UTF-8 is another token, and no error."""
    return hmac.compare_digest(*(text.encode(errors="surrogateescape") for text in (given, token)))
