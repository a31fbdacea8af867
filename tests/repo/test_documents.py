"""Documents and comments name only existing make targets, commands and files, and show the topologies that run.
SECURITY.md has one row for each requirement, and each of its claims names an existing test."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from configparser import ConfigParser
from fnmatch import fnmatchcase
from functools import cache
from pathlib import PurePosixPath
from posixpath import normpath
from xml.etree.ElementTree import fromstring

import pytest
from typer.main import get_command

from perdure.cli.app import app
from perdure.graph.manifest import lines_of, manifest_of, mermaid_of
from perdure.graph.registry import names, spec
from perdure.graph.spec import Topology
from tests.repo.committed import ROOT, files, text_of, texts

_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_MAKE = re.compile(r"(?<![\w/.-])make (?P<target>[a-z]+)(?![\w=])")
_PERDURE = re.compile(r"(?<![\w/.-])(?<!from )(?:bin/)?perdure (?P<words>[a-z]+(?:[ |][a-z|]+)*)")
_LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]+)")
_PATH = re.compile(r"(?<![\w/.<*-])(?P<path>[A-Za-z_.][\w.-]*/(?:[\w.-]+/)*[\w.-]*)")
_MODULE = re.compile(r"(?<![\w/.<{*$-])(?P<path>(?:[\w*.-]+/)*[\w*-]+\.py)\b(?![\w(])")
_REPEATED = re.compile(r"`(?P<path>[^`\s]+\.py)`(?:,| and|;| or) `(?P=path)`")
OLD_ROOTS = (
    *("policy", "reviewer", "relay", "tracing", "apps", "cli", "contracts", "embedding", "egress", "local"),
    *("store", "workflows", "activities", "graph", "api"),
)
"""The old top-level folders, from before the code had one root. A path that begins so must exist."""
_NO_MARK = ("Makefile", "Dockerfile", "importlinter", "ignore")
CONFIGURATION = (".example", ".ini", ".sh", ".toml", ".yaml", ".yml", *_NO_MARK)
"""Endings of other files that name modules."""
USERS_OWN = {("CHANGELOG.md", "policy.py"), ("docs/adr/0032-one-import-root.md", "policy.py")}
"""Files of other owners that a text names: the user's own that hid ours."""
NOT_HERE = (".perdure/", ".venv/", "openai/", "anthropic/", "my-app/")
"""Texts that look like paths of the checkout and are none: files of a run, or a model's name."""
PACKAGES = [path for path in files() if path.startswith("perdure/") and path.endswith("/__init__.py")]
READMES = [path.replace("__init__.py", "README.md") for path in PACKAGES]
PAGES = {name: f"docs/{name}.md" for name in names() if f"docs/{name}.md" in files()}


def code_in(text: str) -> str:
    """The code of a document: fenced blocks and spans, a line each."""
    return "\n".join(found.group().strip("`") for found in _CODE.finditer(text))


def missing_targets(text: str, known: set[str]) -> list[str]:
    """Targets that a document's code makes and that do not exist."""
    return [found["target"] for found in _MAKE.finditer(code_in(text)) if found["target"] not in known]


def commands() -> dict[str, set[str]]:
    found = getattr(get_command(app), "commands", {})
    return {name: set(getattr(command, "commands", {})) for name, command in found.items()}


def missing_commands(text: str, known: dict[str, set[str]]) -> list[str]:
    """Commands that a document's code types and that do not exist; `a|b` types both."""
    missing = []
    for found in _PERDURE.finditer(code_in(text)):
        first, *rest = found["words"].split()
        for name in first.split("|"):
            if name not in known:
                missing.append(f"perdure {name}")
            elif known[name] and rest:
                missing += [f"perdure {name} {sub}" for sub in rest[0].split("|") if sub not in known[name]]
    return missing


def missing_paths(path: str, text: str, here: Sequence[str]) -> list[str]:
    """Links, and paths in a document's spans, that lead to nothing of the checkout."""
    folders = {str(parent) for each in here for parent in PurePosixPath(each).parents}
    tops = {each.partition("/")[0] for each in here}
    known = folders | set(here)
    beside = PurePosixPath(path).parent
    missing = [found["path"] for found in _LINK.finditer(text) if normpath(beside / found["path"]) not in known]
    for span in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        for found in _PATH.finditer(span):
            named = found["path"].rstrip("/.")
            if found["path"].startswith(NOT_HERE) or named.partition("/")[0] not in tops:
                continue
            if named not in known and str(beside / named) not in known:
                missing.append(found["path"])
    return missing


@cache
def remarks(source: str) -> tuple[tuple[int, str], ...]:
    """The comments and docstrings of a module, a line each."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found += enumerate(node.value.value.splitlines(), node.lineno)
    return tuple(found)


@cache
def names_below(folder: str, here: tuple[str, ...]) -> frozenset[str]:
    """The names of each file or folder below this one: its path, and each ending of that."""
    inside = [PurePosixPath(each) for each in here if not folder or each.startswith(f"{folder}/")]
    paths = {each for path in inside for each in (path, *path.parents)}
    return frozenset("/".join(each.parts[start:]) for each in paths for start in range(len(each.parts)))


def is_there(named: str, beside: str, known: frozenset[str]) -> bool:
    """Returns whether a path or a name (`*` for any letters) is known, or exists relative to this folder."""
    if "*" in named:
        return any(fnmatchcase(each, named) for each in known)
    return named in known or normpath(f"{beside}/{named}") in known


def dead_names(path: str, lines: Iterable[tuple[int, str]], here: tuple[str, ...]) -> list[str]:
    """Modules that are named and that no file is; paths from a root that is gone. In a package's README a name alone,
    and in a comment a pattern alone, is a module of that package: one of the same name elsewhere is not meant."""
    beside = PurePosixPath(path).parent
    known = names_below("", here)
    inside = names_below(str(beside), here) if path.startswith("perdure/") else known
    is_package = path.startswith("perdure/") and beside.joinpath("__init__.py").as_posix() in known
    dead = []
    for number, line in lines:
        for found in _MODULE.finditer(line):
            named = found["path"]
            own = "/" not in named and ("*" in named if path.endswith(".py") else is_package)
            if (path, named) not in USERS_OWN and not is_there(named, str(beside), inside if own else known):
                dead.append(f"{path}:{number} names {named}")
        for found in _PATH.finditer(line):
            named = found["path"].rstrip("/.")
            starred = line[found.end() : found.end() + 1] == "*"
            if named.partition("/")[0] in OLD_ROOTS and not starred and not is_there(named, str(beside), known):
                dead.append(f"{path}:{number} names {found['path']}")
    return sorted(set(dead))


def unnamed(readme: str, text: str, here: Sequence[str]) -> list[str]:
    """Modules and packages beside a package's README that it does not name."""
    beside = PurePosixPath(readme).parent
    inside = [PurePosixPath(each).relative_to(beside) for each in here if each.startswith(f"{beside}/")]
    modules = {str(each) for each in inside if len(each.parts) == 1 and each.suffix == ".py" and "__" not in each.name}
    packages = {f"{each.parts[0]}/" for each in inside if len(each.parts) == 2 and each.name == "__init__.py"}
    return sorted(name for name in modules | packages if f"`{name}" not in text)


def names_itself(path: str, lines: Iterable[tuple[int, str]]) -> list[str]:
    """Places where a module sends its reader to itself."""
    own = (path, PurePosixPath(path).name)
    return [f"{path}:{n} names itself" for n, line in lines for found in _MODULE.finditer(line) if found["path"] in own]


def named_twice(path: str, text: str) -> list[str]:
    """Files that a document names twice in one breath, or in two rows of one table."""
    twice: list[str] = []
    rows: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        twice += [f"{path}:{number} names {found['path']} twice" for found in _REPEATED.finditer(line)]
        if not line.startswith("|"):
            rows.clear()
        for named in re.findall(r"`([^`]+\.py)`", line.split("|")[1] if line.startswith("|") else ""):
            if named in rows:
                twice.append(f"{path}:{number} has {named} in two rows")
            rows.add(named)
    return twice


def test_no_text_names_a_module_that_does_not_exist() -> None:
    dead = []
    for path, text in texts(*CONFIGURATION, ".md", ".py"):
        if not any(part in text for part in (".py", *(f"{root}/" for root in OLD_ROOTS))):
            continue
        lines = remarks(text) if path.endswith(".py") else enumerate(text.splitlines(), 1)
        dead += dead_names(path, lines, files())
    assert not dead, "\n".join(dead)


@pytest.mark.parametrize("readme", [path for path in READMES if path in files()])
def test_a_readme_of_a_package_has_all_of_its_modules(readme: str) -> None:
    missing = unnamed(readme, text_of(readme), files())
    assert not missing, f"{readme} says nothing of {missing}"


def test_no_remark_sends_its_reader_to_where_it_is_read_and_no_document_names_a_file_twice_in_a_breath() -> None:
    own = [(path, text) for path, text in texts(".py", within=("perdure",)) if PurePosixPath(path).name in text]
    faults = [fault for path, source in own for fault in names_itself(path, remarks(source))]
    faults += [fault for path, text in texts(".md") for fault in named_twice(path, text)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", [path for path, _ in texts(".md")])
def test_a_document_names_only_what_exists(path: str) -> None:
    text = text_of(path)
    made = missing_targets(text, set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE)))
    missing = [*made, *missing_commands(text, commands()), *missing_paths(path, text, files())]
    assert not missing, f"{path} names {missing}, which is not there"


def test_the_readme_is_a_front_page_with_what_a_newcomer_needs() -> None:
    readme = text_of("README.md")
    assert len(readme.split()) <= 900, "move some of it to docs/"
    wanted = ("make demo", "make up", "make test", "perdure chat", "perdure approvals approve", "perdure init")
    assert not [words for words in wanted if words not in code_in(readme)]


def test_the_picture_of_a_turn_is_the_same_in_both_color_schemes() -> None:
    shown = re.findall(r'(?:srcset|src)="(?P<path>[^"]+)"', text_of("README.md"))
    assert shown == ["docs/pictures/turn-dark.svg", "docs/pictures/turn-light.svg"]
    dark, light = (re.sub("#[0-9a-f]{6}", "", text_of(path)) for path in shown)
    assert dark == light
    assert fromstring(light).tag == "{http://www.w3.org/2000/svg}svg"


def test_every_package_has_a_line_in_the_map() -> None:
    found = {path.rpartition("/")[0] for path in files() if re.fullmatch(r"(perdure/)?\w+/__init__\.py", path)}
    packages = sorted(found - {"perdure", "tests", "bench"})
    assert not [package for package in packages if f"`{package}/`" not in text_of("ARCHITECTURE.md")]


def test_the_layers_are_drawn_as_the_import_contract_has_them() -> None:
    contract = ConfigParser()
    contract.read_string(text_of(".importlinter"))
    kept = contract["importlinter:contract:layers"]["layers"].split("\n")
    drawn = re.search(r"^## Layers$.*?^```\n(.*?)^```$", text_of("ARCHITECTURE.md"), re.MULTILINE | re.DOTALL)
    assert drawn is not None
    rows = [sorted(row.replace("|", " ").split()) for row in drawn.group(1).splitlines()]
    assert rows == [sorted(row.replace("|", " ").split()) for row in kept if row.strip()]


def differences(page: str, topology: Topology) -> list[str]:
    drawn = f"```mermaid\n{mermaid_of(manifest_of(topology)).rstrip()}\n```"
    found = [] if "```mermaid" not in page or drawn in page else [f"draw it anew:\n{drawn}"]
    edges = [
        (each.source, each.target, each.kind or each.form, each.condition or each.label) for each in lines_of(topology)
    ]
    head = ["| from | to | kind | condition |", "|---|---|---|---|"]
    table = "\n".join([*head, *(f"| {' | '.join(edge)} |" for edge in edges)])
    return found if "| from | to |" not in page or table in page else [*found, f"list the edges anew:\n{table}"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_the_topology_that_runs(name: str) -> None:
    page = text_of(PAGES[name])
    assert not differences(page, spec(name)), PAGES[name]
    assert ("```mermaid" in page) is ("| from | to |" in page) is (name == "context_assembly"), "or nothing is compared"


_TREE = ("perdure/store/__init__.py", "perdure/store/turns/start.py", "perdure/apps/mcp.py", "worker.py")
_STORE, _START = "perdure/store/README.md", "perdure/store/turns/start.py"
_SOURCE = '"""Not as\nadopt.py."""\nx = "gone.py"  # see policy/gate.py and start.py\n'
_NAMED = ("2 names adopt.py", "3 names policy/gate.py")
_LINKS = "[one](adr/0001.md), [two](adr/0002.md), `perdure/store/turns/start.py`, `perdure/store/gone.py`, `POST /v1/x`"
_TABLES = "| `a.py` | one |\n| `a.py` | two |\n\n| `a.py` | other |\nsee `b.py`, `b.py`\n"
_KNOWN: dict[str, set[str]] = {"up": set(), "turns": {"show"}}


def _dead(span: str, path: str = "docs/streams.md") -> list[str]:
    return [each.rpartition(" names ")[2] for each in dead_names(path, [(1, f"see `{span}`")], _TREE)]


@pytest.mark.parametrize(("found", "expected"), [
    (missing_targets("make sense\n```\nmake PYTHON=python3 test\nmake nothing\n```", {"test"}), ["nothing"]),
    (missing_commands("`bin/perdure turns show ID`, `perdure up|fly`", _KNOWN), ["perdure fly"]),
    (missing_paths("docs/f.md", _LINKS, [_START, "docs/adr/0001.md"]), ["adr/0002.md", "perdure/store/gone.py"]),
    *((_dead(span), []) for span in (_START, "turns/st*.py", "python worker.py", "apps/", "GET /v1/apps/x")),
    *((_dead(span), [span]) for span in ("store/sta*.py", "adopt.py", "store/turns.py", "relay/")),
    (_dead("mcp.py", _STORE), ["mcp.py"]),
    (unnamed(_STORE, "`turns/start.py`", [*_TREE, "perdure/store/paging.py"]), ["paging.py"]),
    (dead_names(_START, remarks(_SOURCE), _TREE), [f"{_START}:{each}" for each in _NAMED]),
    (names_itself(_START, remarks(_SOURCE)), [f"{_START}:3 names itself"]),
    (named_twice("x.md", _TABLES), ["x.md:2 has a.py in two rows", "x.md:5 names b.py twice"]),
])  # fmt: skip
def test_planted_faults_are_found_and_nothing_else(found: list[str], expected: list[str]) -> None:
    assert found == expected


SECURITY = (ROOT / "SECURITY.md").read_text()
TEST = re.compile(r"`((?:[\w]+/)*test_\w+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| (\d\.\d+\.\d+) \| (\S+) \| (.*) \|$", re.MULTILINE)
LEVEL_2 = {
    "6.1": 3, "6.2": 12, "6.3": 4, "6.4": 4, "6.5": 5, "6.6": 3, "6.8": 4,
    "7.1": 3, "7.2": 4, "7.3": 2, "7.4": 5, "7.5": 2, "7.6": 2,
    "8.1": 2, "8.2": 3, "8.3": 1, "8.4": 1,
}  # fmt: skip
"""Requirements of level 1 and 2 by section, as ASVS 5.0 numbers them."""


def test_each_named_test_exists() -> None:
    named = TEST.findall(SECURITY)
    assert len(named) > 30
    known = {path.removeprefix("tests/"): text_of(path) for path in files() if path.startswith("tests/")}
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in known.get(file, "")]
    assert not missing


def test_each_requirement_has_one_row_with_evidence_or_a_named_gap() -> None:
    rows = [(number, status, evidence) for number, status, evidence in ROW.findall(SECURITY)]
    expected = [f"{section}.{each}" for section, most in LEVEL_2.items() for each in range(1, most + 1)]
    assert [number for number, _, _ in rows] == expected
    for number, status, evidence in rows:
        assert status in ("met", "partly", "gap", "n/a"), number
        assert status != "met" or TEST.search(evidence) or "](#" in evidence or "](docs/" in evidence, number
        assert len(evidence) > 10, number
