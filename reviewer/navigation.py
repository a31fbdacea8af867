"""The pages that every page leads to."""

from collections.abc import Collection
from dataclasses import dataclass

_PAGES = (
    ("/chat", "Chat"),
    ("/review", "Review"),
    ("/review/mine", "My decisions"),
    ("/agents", "Agents"),
    ("/status", "Status"),
)
_MACHINERY = ("/status",)
"""For those who look after it: others are not led to what the API refuses them."""
_LOOK_AFTER_IT = frozenset({"reviewer", "admin"})
_BELOW = {"/topologies": "/agents"}
"""Pages that are reached from one of these alone."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One way on."""

    path: str
    label: str
    is_here: bool
    """This page, or one below it."""


def entries(path: str, roles: Collection[str] = ()) -> list[Entry]:
    """The navigation as it stands on the page at `path`: the longest entry that it is below is where one is."""
    path = next((above for root, above in _BELOW.items() if path.startswith(root + "/")), path)
    below = [each for each, _ in _PAGES if path == each or path.startswith(each + "/")]
    here = max(below, key=len, default="")
    led = _LOOK_AFTER_IT.intersection(roles)
    return [Entry(each, label, each == here) for each, label in _PAGES if led or each not in _MACHINERY]
