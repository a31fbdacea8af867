"""What the documents name is there: make targets, commands, files."""

import re
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from pathlib import PurePosixPath
from posixpath import normpath
from xml.etree.ElementTree import fromstring

import pytest
from typer.main import get_command

from perdure.cli.app import app
from tests.repo.committed import ROOT, files, text_of, texts

_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_MAKE = re.compile(r"(?<![\w/.-])make (?P<target>[a-z]+)(?![\w=])")
_PERDURE = re.compile(r"(?<![\w/.-])(?<!from )(?:bin/)?perdure (?P<words>[a-z]+(?:[ |][a-z|]+)*)")
_LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]+)")
_PATH = re.compile(r"(?<![\w/.<*-])(?P<path>[A-Za-z_.][\w.-]*/(?:[\w.-]+/)*[\w.-]*)")
FRONT_PAGE_WORDS = 900
NOT_HERE = (".perdure/", ".venv/", "openai/", "anthropic/", "my-app/")
"""What looks like a path and is none of the checkout: made by running it, or a model's name."""


def documents() -> Iterator[tuple[str, str]]:
    """The Markdown files."""
    return texts(".md")


def code_in(text: str) -> str:
    """The code of a document: fenced blocks and spans, a line each."""
    return "\n".join(found.group().strip("`") for found in _CODE.finditer(text))


def targets(makefile: str) -> set[str]:
    """The targets of a Makefile."""
    return set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))


def missing_targets(text: str, known: set[str]) -> list[str]:
    """Targets that a document's code makes and nobody has."""
    return [found["target"] for found in _MAKE.finditer(code_in(text)) if found["target"] not in known]


def commands() -> dict[str, set[str]]:
    """The sub-commands of `perdure`, each with its own."""
    root = get_command(app)
    found = getattr(root, "commands", {})
    return {name: set(getattr(command, "commands", {})) for name, command in found.items()}


def missing_commands(text: str, known: dict[str, set[str]]) -> list[str]:
    """Commands that a document's code types and nobody has; `a|b` types both."""
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


@pytest.mark.parametrize("path", [path for path, _ in documents()])
def test_a_document_names_only_what_there_is(path: str) -> None:
    text = text_of(path)
    made = missing_targets(text, targets(text_of("Makefile")))
    typed = missing_commands(text, commands())
    led = missing_paths(path, text, files())
    assert not made, f"{path} makes {made}, which the Makefile does not have"
    assert not typed, f"{path} types {typed}, which perdure/cli/app.py does not have"
    assert not led, f"{path} leads to {led}, which is not there"


def test_the_readme_names_the_targets_and_the_commands_that_a_newcomer_needs() -> None:
    code = code_in(text_of("README.md"))
    for words in ("make demo", "make up", "make test", "perdure chat", "perdure approvals approve", "perdure init"):
        assert words in code, f"README.md does not say `{words}` any more"


def test_the_readme_is_a_front_page() -> None:
    words = len(text_of("README.md").split())
    assert words <= FRONT_PAGE_WORDS, f"README.md has {words} words: move some of it to docs/"


def test_the_picture_of_a_turn_says_the_same_in_both_schemes() -> None:
    readme = text_of("README.md")
    shown = re.findall(r'(?:srcset|src)="(?P<path>[^"]+)"', readme)
    assert shown == ["docs/pictures/turn-dark.svg", "docs/pictures/turn-light.svg"]
    dark, light = (re.sub("#[0-9a-f]{6}", "", text_of(path)) for path in shown)
    assert dark == light
    assert fromstring(light).tag == "{http://www.w3.org/2000/svg}svg"


def test_every_package_has_a_line_in_the_map() -> None:
    architecture = text_of("ARCHITECTURE.md")
    found = {path.rpartition("/")[0] for path in files() if re.fullmatch(r"(perdure/)?\w+/__init__\.py", path)}
    packages = sorted(found - {"perdure"})
    missing = [
        package for package in packages if package not in ("tests", "bench") and f"`{package}/`" not in architecture
    ]
    assert not missing, f"ARCHITECTURE.md says nothing of {missing}"


def test_the_layers_are_drawn_as_the_contract_has_them() -> None:
    contract = ConfigParser()
    contract.read_string(text_of(".importlinter"))
    kept = contract["importlinter:contract:layers"]["layers"].split("\n")
    drawn = re.search(r"^## Layers$.*?^```\n(.*?)^```$", text_of("ARCHITECTURE.md"), re.MULTILINE | re.DOTALL)
    assert drawn is not None
    rows = [sorted(row.replace("|", " ").split()) for row in drawn.group(1).splitlines()]
    assert rows == [sorted(row.replace("|", " ").split()) for row in kept if row.strip()]


def test_the_command_line_of_the_checkout_runs_the_package() -> None:
    assert "-m perdure " in (ROOT / "bin" / "perdure").read_text()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`make up`, then `make it so`", ["it"]),
        ("```\nmake PYTHON=python3 test\nmake nothing\n```", ["nothing"]),
        ("make sense of it", []),
    ],
)
def test_a_target_that_nobody_has_is_found(text: str, missing: list[str]) -> None:
    assert missing_targets(text, {"up", "test"}) == missing


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`perdure up|fly`", ["perdure fly"]),
        ("`bin/perdure turns show ID` and `perdure turns drop`", ["perdure turns drop"]),
        ("```\nbin/perdure chat refunds -m 'hi'\n```", []),
        ("perdure is a word", []),
    ],
)
def test_a_command_that_nobody_has_is_found(text: str, missing: list[str]) -> None:
    assert missing_commands(text, {"up": set(), "chat": set(), "turns": {"show"}}) == missing


def test_a_path_that_leads_nowhere_is_found() -> None:
    here = ["perdure/store/turns/start.py", "docs/adr/0001.md", "docs/figures.md"]
    text = "See [one](adr/0001.md), [two](adr/0002.md), `perdure/store/turns/start.py`, `perdure/store/gone.py`, "
    text += "`POST /v1/x`, `a/b`."
    assert missing_paths("docs/figures.md", text, here) == ["adr/0002.md", "perdure/store/gone.py"]
