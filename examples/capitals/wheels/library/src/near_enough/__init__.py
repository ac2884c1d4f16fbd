"""How near a text comes to a name."""

from difflib import SequenceMatcher


def nearness(name: str, text: str) -> float:
    """1 if a word of `text` is `name`, else the likeness of the word that is most like it, from 0 to 1."""
    words = [word.strip(".,!?\"'{}()").lower() for word in text.replace("{", " ").split()]
    return max((SequenceMatcher(None, name.lower(), word).ratio() for word in words), default=0.0)
