"""The rules in .importlinter cover every package, and a planted violation breaks them."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.committed import ROOT, files, text_of

MAY_IMPORT_LANGGRAPH = ("perdure/graph/compile.py", "perdure/graph/adopt.py")
DATA = frozenset({"examples"})
"""Read from their files, never imported."""


def layers() -> list[str]:
    """The packages of the `layers` contract, from the top."""
    read = configparser.ConfigParser()
    read.read_string(text_of(".importlinter"))
    return re.findall(r"\w+", read["importlinter:contract:layers"]["layers"])


def packages() -> set[str]:
    """The packages and modules directly below `perdure`."""
    names = {path.split("/")[1] for path in files() if path.startswith("perdure/") and path.endswith(".py")}
    return {name.removesuffix(".py") for name in names} - {"__init__", *DATA}


def test_every_package_has_its_layer_once() -> None:
    named = layers()
    assert len(named) == len(set(named))
    assert set(named) == packages()


def linted(tree: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of the packages in this tree."""
    command = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"], cwd=tree, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and the contracts, in a folder of their own."""
    tree = tmp_path_factory.mktemp("tree")
    for path in files():
        if path.startswith("perdure/") and path.endswith(".py") and not path.startswith("perdure/examples/"):
            target = tree / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text_of(path))
    shutil.copy(ROOT / ".importlinter", tree)
    return tree


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("core/text.py", "perdure.embedding.choice"),
        ("worker/outbox.py", "perdure.api.errors"),
        ("sdk/outcomes.py", "perdure.store.paging"),
        ("pages/render.py", "perdure.store.paging"),
        ("activities/tools.py", "perdure.graph.compile"),
    ],
)
def test_a_planted_import_against_the_layers_is_found(copy: Path, importer: str, imported: str) -> None:
    module = copy / "perdure" / importer
    before = module.read_text()
    module.write_text(f"{before}\nimport {imported}\n")
    try:
        ended = linted(copy)
    finally:
        module.write_text(before)
    dotted = f"perdure.{importer.removesuffix('.py').replace('/', '.')}"
    assert ended.returncode == 1
    assert f"{dotted} -> {imported}" in ended.stdout


def test_the_packages_as_they_are_break_no_rule(copy: Path) -> None:
    ended = linted(copy)
    assert ended.returncode == 0, ended.stdout


def importing(pattern: str) -> set[str]:
    """The files of the packages that import one of these."""
    found = re.compile(rf"^\s*(?:from|import) (?:{pattern})\b", re.MULTILINE)
    ours = [path for path in files() if path.endswith(".py") and path.startswith(("perdure/", "deploy/"))]
    return {path for path in ours if found.search(text_of(path))}


def test_langgraph_is_imported_in_one_place() -> None:
    found = importing("langgraph|langchain_core") - set(MAY_IMPORT_LANGGRAPH)
    assert not found, f"{sorted(found)} import LangGraph: only {MAY_IMPORT_LANGGRAPH} may"


def test_no_package_imports_the_tests_the_benchmark_or_the_worker() -> None:
    found = importing(r"tests|bench|worker|perdure\.worker\.(?:__main__|queues)")
    found -= {"perdure/worker/__main__.py"}
    assert not found, f"{sorted(found)} import a program, the tests or the benchmark"


def test_nothing_imports_an_example_or_starts_one_as_a_part_of_the_package() -> None:
    assert not importing(r"perdure\.examples"), "examples are data, read by path"
    product = [path for path in files() if path.startswith(("perdure/", "deploy/", "bench/")) or path == "Makefile"]
    assert not [path for path in product if re.search(r"-m[\s\"',]+perdure\.examples", text_of(path))]


def test_an_example_imports_only_what_an_app_of_a_user_can() -> None:
    rule = re.compile(r"^\s*(?:from|import) (?:perdure\.(?!sdk\b|client\b)|tests\b|bench\b)", re.MULTILINE)
    examples = [path for path in files() if path.startswith("perdure/examples/") and path.endswith(".py")]
    assert not [path for path in examples if rule.search(text_of(path))]
