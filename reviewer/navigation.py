"""The pages that every page leads to."""

from dataclasses import dataclass

_PAGES = (("/chat", "Chat"), ("/review", "Review"), ("/review/mine", "My decisions"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One way on."""

    path: str
    label: str
    is_here: bool
    """This page, or one below it."""


def entries(path: str) -> list[Entry]:
    """The navigation as it stands on the page at `path`: the longest entry that it is below is where one is."""
    below = [each for each, _ in _PAGES if path == each or path.startswith(each + "/")]
    here = max(below, key=len, default="")
    return [Entry(each, label, each == here) for each, label in _PAGES]
