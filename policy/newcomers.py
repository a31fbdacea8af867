"""What somebody is called who signs in by a provider elsewhere for the first time."""

import re
import unicodedata
from collections.abc import Mapping

_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_CLAIMS = ("preferred_username", "email", "sub")
"""The first that gives a name is taken."""
_RESERVED = "erased-"


def name_from(claims: Mapping[str, object]) -> str | None:
    """A name of ours from what the provider says; None where nothing of it can be one."""
    for claim in _CLAIMS:
        given = claims.get(claim)
        if not isinstance(given, str):
            continue
        plain = unicodedata.normalize("NFKD", given.partition("@")[0]).encode("ascii", "ignore").decode().lower()
        name = re.sub(r"[^a-z0-9._-]+", "-", plain).strip("-._")[:63]
        if _NAME.fullmatch(name) and not name.startswith(_RESERVED):
            return name
    return None


def display_name_from(claims: Mapping[str, object]) -> str:
    """What the person is called in full; empty where the provider does not say."""
    given = claims.get("name")
    return " ".join(given.split())[:100] if isinstance(given, str) and given.isprintable() else ""
