"""Assertions about an app's problems: the place of each, and the names in it that the test itself chose."""

from collections.abc import Sequence

from perdure.apps import App


def problems_of(app: App) -> list[str]:
    """The problems, with paths inside the app folder."""
    return [str(problem).replace(f"{app.folder}/", "") for problem in app.problems]


def is_at(problem: str, expected: str) -> bool:
    """Returns whether a problem has this place and names all this data: `path:line name name`."""
    place, *data = expected.split()
    return problem.startswith(f"{place}: ") and all(each in problem for each in data)


def are_at(problems: Sequence[str], expected: Sequence[str]) -> bool:
    return len(problems) == len(expected) and all(map(is_at, problems, expected))
