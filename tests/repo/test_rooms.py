"""The rooms of a layer, its folders and modules, import each other one way only."""

from collections.abc import Mapping

import pytest

from tests.repo.committed import imported, text_of, texts


def room(dotted: str, layer: str) -> str:
    """The folder or module below a layer that this name is in; empty for any other name."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == ["perdure", layer] and len(parts) > 2 else ""


def arrows(layer: str, sources: Mapping[str, str]) -> set[tuple[str, str]]:
    """Pairs of rooms, of which the first imports the second."""
    found: set[tuple[str, str]] = set()
    for path, text in sources.items():
        mine = room(path.removesuffix(".py").replace("/", "."), layer)
        others = {room(name, layer) for name in imported(text)} if mine else set()
        found |= {(mine, other) for other in others - {"", mine}}
    return found


def knots(layer: str, sources: Mapping[str, str]) -> list[tuple[str, str]]:
    """The pairs of rooms that import each other."""
    found = arrows(layer, sources)
    return sorted((one, other) for one, other in found if one < other and (other, one) in found)


def sources() -> dict[str, str]:
    return dict(texts(".py", within=("perdure",)))


@pytest.mark.parametrize("layer", ("activities", "api", "core", "graph", "store"))
def test_no_two_subpackages_import_each_other(layer: str) -> None:
    assert arrows(layer, sources()), f"{layer} has no arrows at all: the test does not see its imports"
    assert not knots(layer, sources())


@pytest.mark.parametrize(("layer", "path", "line"), [
    ("store", "perdure/store/calls/model_calls.py", "from perdure.store.turns.steer import take"),
    ("activities", "perdure/activities/providers/errors.py", "def late():\n    import perdure.activities.guard"),
])  # fmt: skip
def test_a_planted_cycle_of_imports_is_found(layer: str, path: str, line: str) -> None:
    planted = sources() | {path: f"{text_of(path)}\n{line}\n"}
    assert text_of(path)
    assert len(knots(layer, planted)) == 1
