"""The address of a document inside its store: words in lower case between slashes, as `deploys/rollback.md`."""

import re

from contracts.errors import CallerError

MOST_CHARACTERS = 200
PATTERN = r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*$"
_PATH = re.compile(PATTERN)


def path_refusal(path: str) -> CallerError | None:
    """Why this is no path of a document."""
    if len(path) <= MOST_CHARACTERS and _PATH.fullmatch(path) and ".." not in path:
        return None
    said = f"a path has letters in lower case, digits, . _ - and / between them, {MOST_CHARACTERS} characters at most"
    return CallerError("path_invalid", said)
