"""What is kept of a turn for later: a summary of its own texts, made without a model, the same every time."""

from policy.text import clean

ASKED_CHARACTERS = 400
ANSWERED_CHARACTERS = 600
"""Together about what an embedding model reads (256 word pieces); the start of a text says what it is about."""


def summary_of(asked: str, answered: str) -> str:
    """The summary of a completed turn: what was asked and what was answered, each cut at a word."""
    lines = [f"Asked: {_start(asked, ASKED_CHARACTERS)}"]
    if answered.strip():
        lines.append(f"Answered: {_start(answered, ANSWERED_CHARACTERS)}")
    return "\n".join(lines)


def _start(text: str, most: int) -> str:
    """The beginning of a text in one line."""
    line = " ".join(clean(text).split())
    if len(line) <= most:
        return line
    head, _, _ = line[:most].rpartition(" ")
    return f"{head or line[:most]} …"
