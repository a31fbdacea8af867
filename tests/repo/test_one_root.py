"""All code is below `perdure`; the folders on top are links that no module imports through."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.repo.committed import ROOT
from tests.repo.loaded import PROGRAMS, doubles, loaded

LINKS = ("activities", "api", "examples", "graph", "workflows")


@pytest.mark.parametrize("name", LINKS)
def test_a_folder_on_top_is_a_link_to_the_package(name: str) -> None:
    place = ROOT / name
    written = str(place.readlink()) if place.is_symlink() else place.read_text().strip()  # a checkout without links
    assert written == f"perdure/{name}"
    assert (ROOT / written).is_dir()


def ours(found: Mapping[str, Path]) -> dict[str, Path]:
    """Returns the modules of this checkout without those of app folders, which are loaded by path. Tests can import an
    example; the product never does."""
    by_path = tuple(ROOT / each for each in (".venv", "perdure/examples", "perdure/apps/template", "tests/apps"))
    here = {name: file for name, file in found.items() if file.is_relative_to(ROOT)}
    return {name: file for name, file in here.items() if not any(map(file.is_relative_to, by_path))}


def test_no_file_is_loaded_twice() -> None:
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    found = ours({name: Path(file) for name, file in files.items() if file})
    assert len(found) > 10
    assert not doubles(found), "import perdure.<name>, never through a link"


def test_no_process_loads_a_file_twice() -> None:
    modules = dict.fromkeys(module for program in PROGRAMS.values() for module in program)
    found = ours(loaded(("worker", *modules), ROOT))
    assert len(found) > 100
    assert not doubles(found), "import perdure.<name>, never through a link"
    assert {name.partition(".")[0] for name in found} <= {"perdure", "worker"}


@pytest.mark.skipif(not (ROOT / "graph").is_symlink(), reason="a checkout without links")
def test_a_process_that_imports_through_a_link_is_found() -> None:
    found = doubles(ours(loaded(("perdure.graph", "graph"), ROOT)))
    assert found == {str(ROOT / "perdure" / "graph" / "__init__.py"): ["graph", "perdure.graph"]}
