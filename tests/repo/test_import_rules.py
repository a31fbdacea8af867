"""The rules of imports, each with a planted violation. All code is below `perdure`; the folders on top are links that
no module imports through. The rooms of a layer, its folders and modules, import each other one way only."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import perdure
from perdure.worker.queues import REPLAY_PACKAGES
from tests.repo.committed import PROGRAMS, ROOT, doubles, files, imported, loaded, said, text_of, texts

MAY_IMPORT_LANGGRAPH = "perdure/graph/compile.py"
LINKS = ("activities", "api", "examples", "graph", "workflows")


def test_every_package_has_its_layer_once() -> None:
    read = configparser.ConfigParser()
    read.read_string(text_of(".importlinter"))
    named = re.findall(r"\w+", read["importlinter:contract:layers"]["layers"])
    below_root = {path.split("/")[1] for path in files() if path.startswith("perdure/") and path.endswith(".py")}
    assert sorted(named) == sorted({name.removesuffix(".py") for name in below_root} - {"__init__", "examples"})


def linted(tree: Path) -> subprocess.CompletedProcess[str]:
    call = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", call, "--no-cache"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120)


@pytest.fixture
def checkout_copy(tmp_path: Path) -> Path:
    for path in files():
        if path.startswith("perdure/") and path.endswith(".py") and not path.startswith("perdure/examples/"):
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text_of(path))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def test_the_packages_break_no_layer_and_planted_imports_do(checkout_copy: Path) -> None:
    planted = {"core.text": "embedding.choice", "worker.outbox": "api.errors", "activities.tools": "graph.compile"}
    planted |= {"sdk.outcomes": "store.paging", "pages.render": "store.paging"}
    for importer, target in planted.items():
        with (checkout_copy / "perdure" / f"{importer.replace('.', '/')}.py").open("a") as module:
            module.write(f"\nimport perdure.{target}\n")
    ended = linted(checkout_copy)
    reported = dict(re.findall(r"perdure\.(\S+) -> perdure\.(\S+)", ended.stdout))
    assert (ended.returncode, reported) == (1, planted), ended.stdout


def below(name: str, *packages: str) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def faults(found: Mapping[str, str], is_allowed: Callable[[str], bool]) -> list[str]:
    """The imports in these files that are not allowed. Only apps import by relative names, within themselves."""
    return [
        f"{path} imports {name}"
        for path, text in found.items()
        for name in imported(text)
        if not (is_allowed is for_apps if name.startswith(".") else is_allowed(name))
    ]


def none_of(*packages: str) -> Callable[[str], bool]:
    return lambda name: not below(name, *packages)


no_langgraph = none_of("langgraph", "langchain_core")
no_program = none_of("tests", "bench", "worker", "perdure.worker.__main__", "perdure.worker.queues")
no_example = none_of("perdure.examples", "examples")


def for_apps(name: str) -> bool:
    """What an app of a user imports of Perdure: its public names, the SDK and the client."""
    if not below(name, "perdure", "tests", "bench"):
        return True
    return below(name, "perdure.sdk", "perdure.client") or name.removeprefix("perdure.") in perdure.__all__


def decides(name: str) -> bool:
    """Code that `build_id` covers, or a library."""
    return not below(name, "perdure") or below(name, *(f"perdure.{each}" for each in REPLAY_PACKAGES))


def test_no_file_imports_what_its_rule_forbids() -> None:
    product = dict(texts(".py", within=("perdure", "deploy")))
    engine = {path: text for path, text in product.items() if not path.startswith("perdure/examples/")}
    users = {path: text for path, text in product.items() if path.startswith(("perdure/examples/", "deploy/"))}
    deciders = dict(texts(".py", within=tuple(f"perdure/{each}" for each in REPLAY_PACKAGES)))
    found = [
        *faults({path: text for path, text in engine.items() if path != MAY_IMPORT_LANGGRAPH}, no_langgraph),
        *faults({path: text for path, text in engine.items() if path != "perdure/worker/__main__.py"}, no_program),
        *faults(engine, no_example), *faults(users, for_apps), *faults(deciders, decides),
    ]  # fmt: skip
    assert not found, "\n".join(found)


def test_no_example_is_started_as_a_part_of_the_package() -> None:
    product = [path for path in files() if path.startswith(("perdure/", "deploy/", "bench/")) or path == "Makefile"]
    assert not [path for path in product if re.search(r"-m[\s\"',]+perdure\.examples", text_of(path))]


@pytest.mark.parametrize(("rule", "line"), [
    (no_langgraph, "from langgraph.graph import StateGraph"), (no_program, "def late():\n    import worker"),
    (no_example, "from ..examples import care"), (for_apps, "from perdure import store"),
    (decides, "from perdure.store.database import Database"),
])  # fmt: skip
def test_a_planted_import_against_a_rule_is_found(rule: Callable[[str], bool], line: str) -> None:
    assert len(faults({"a.py": line}, rule)) == 1


def test_an_import_through_a_link_or_an_old_root_is_a_fault_for_ruff() -> None:
    read = tomllib.loads(text_of("pyproject.toml"))
    banned = [*read["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]]
    assert {"activities", "api", "examples", "graph", "workflows", "worker"} <= set(banned), "the entries on top"
    assert {"policy", "reviewer", "store", "settings", "relay", "tracing"} <= set(banned), "roots of before the move"
    lines = "".join(f"import {name}\nfrom {name}.part import thing\n" for name in banned)
    check = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--output-format", "concise", "-"]
    ended = subprocess.run(check, input=lines, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stdout.count("TID251") == 2 * len(banned), ended.stdout + ended.stderr


def test_the_public_package_imports_nothing_before_it_is_used() -> None:
    found = said([sys.executable, "-c", "import sys, perdure; print(*sys.modules)"], ROOT).split()
    assert [name for name in found if below(name, "perdure")] == ["perdure"]
    assert not [name for name in found if below(name, "httpx", "pydantic", "temporalio", "langgraph")]


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
