"""Which tools run side by side, and which wait: Kahn's algorithm over names (S1-21 to S1-24)."""

from collections.abc import Iterable, Mapping, Sequence


def phases(dependencies: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """The names in groups, each in the given order; a group needs only what is in those before it.

    A dependency that is not among the names is ignored: it does not run this time.

    Raises: ValueError, which names the cycle.
    """
    waits = {name: {each for each in needed if each in dependencies} for name, needed in dependencies.items()}
    found: list[tuple[str, ...]] = []
    while waits:
        ready = tuple(name for name, needed in waits.items() if not needed)
        if not ready:
            raise ValueError(f"cycle in pipeline: {' -> '.join(_cycle(waits))}")
        found.append(ready)
        waits = {name: needed.difference(ready) for name, needed in waits.items() if needed}
    return tuple(found)


def left_out(listed: Iterable[str], dependencies: Mapping[str, Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """(tool, dependency) for each listed tool whose dependency the same list leaves out."""
    names = tuple(listed)
    return tuple((name, each) for name in names for each in dependencies.get(name, ()) if each not in names)


def _cycle(waits: Mapping[str, Iterable[str]]) -> list[str]:
    """One cycle, its first name repeated at the end. Every name here waits for another that is here too."""
    path = [min(waits)]
    while True:
        following = min(waits[path[-1]])
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
