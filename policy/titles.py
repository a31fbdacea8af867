"""What a conversation is called that its user has given no title (S2-65): the first words of its first message."""

from policy.text import clean, is_blank

TITLE_CHARACTERS = 60
TITLE_WORDS = 6
READ_CHARACTERS = 400
"""So much of a message is enough to name it by."""


def title_of(message: str) -> str:
    """Its first words in one line, 60 characters at most; empty where a reader would see nothing of them."""
    words = clean(message[:READ_CHARACTERS]).split()
    title = " ".join(words[:TITLE_WORDS])
    if len(title) > TITLE_CHARACTERS:
        title = title[: TITLE_CHARACTERS - 1].rstrip() + "…"
    return "" if is_blank(title) else title
