"""Marks that a topology looks for in a model's whole answer, found before the answer is cut to a reference."""

import re

MOST = 20
"""Marks beyond these are ignored: a runaway answer must not fill a history."""


def extracted(pattern: str, text: str) -> tuple[str, ...]:
    """The first group of every match of `pattern`, in order, each once."""
    if not pattern:
        return ()
    found = dict.fromkeys(match.group(1)[:200] for match in re.finditer(pattern, text))
    return tuple(found)[:MOST]
