""".importlinter speaks of the packages that there are, and of all of them."""

import configparser
import re
from collections.abc import Mapping

from tests.repo.committed import files, text_of

BESIDE = frozenset({"bench", "tests"})
"""They may import everything, and nobody imports them: see below."""
MAY_IMPORT_LANGGRAPH = ("perdure/graph/compile.py", "perdure/graph/adopt.py")


def rules() -> Mapping[str, Mapping[str, str]]:
    """The sections of .importlinter."""
    read = configparser.ConfigParser()
    read.read_string(text_of(".importlinter"))
    return {name: dict(read[name]) for name in read.sections()}


def listed(section: Mapping[str, str], key: str) -> list[str]:
    """A list in a section."""
    return section.get(key, "").split()


def packages() -> set[str]:
    """The packages of `perdure`, and the other top folders of the checkout that hold Python."""
    found: set[str] = set()
    for path in files():
        top, *rest = path.split("/")
        if path.endswith(".py") and rest:
            found.add(f"{top}.{rest[0]}" if top == "perdure" and len(rest) > 1 else top)
    return found - {*BESIDE, "perdure", "perdure.examples"}


def modules() -> set[str]:
    """Every module and package of the checkout, dotted."""
    found = set()
    for path in files():
        if path.endswith(".py"):
            parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
            found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return found


def faults(sections: Mapping[str, Mapping[str, str]], tops: set[str], there: set[str]) -> list[str]:
    """What is wrong with the rules."""
    roots = listed(sections["importlinter"], "root_packages")
    contracts = {name: section for name, section in sections.items() if name.startswith("importlinter:contract:")}
    sources = {each for section in contracts.values() for each in listed(section, "source_modules")}
    sources |= {".".join(each.split(".")[:2]) for each in sources}
    named = {each.split(".")[0] for each in tops}
    found = [f"root_packages names {name}, which is not there" for name in sorted(set(roots) - named)]
    found += [f"add {name} to root_packages" for name in sorted(named - set(roots))]
    found += [f"no contract says what {name} may import" for name in sorted(tops - sources)]
    for name, section in contracts.items():
        for module in [*listed(section, "source_modules"), *listed(section, "forbidden_modules")]:
            if module.split(".")[0] in named and module not in there:
                found.append(f"{name} names {module}, which is not there")
    return found


def test_every_package_is_under_a_rule_and_every_name_in_a_rule_is_there() -> None:
    found = faults(rules(), packages(), modules())
    assert not found, "mend .importlinter:\n" + "\n".join(found)


def importing(pattern: str) -> set[str]:
    """The files of the packages that import one of these."""
    found = re.compile(rf"^\s*(?:from|import) (?:{pattern})\b", re.MULTILINE)
    ours = [path for path in files() if path.endswith(".py") and path.startswith(("perdure/", "deploy/"))]
    return {path for path in ours if found.search(text_of(path))}


def test_langgraph_is_imported_in_one_place() -> None:
    found = importing("langgraph|langchain_core") - set(MAY_IMPORT_LANGGRAPH)
    assert not found, f"{sorted(found)} import LangGraph: only {MAY_IMPORT_LANGGRAPH} may"


def test_no_package_imports_the_tests_the_benchmark_or_the_worker() -> None:
    found = importing(r"tests|bench|worker|perdure\.worker\.(?:__main__|serving|queues)")
    found -= {"perdure/worker/__main__.py"}
    assert not found, f"{sorted(found)} import what stands beside or on top of the packages"


def test_an_example_imports_what_a_users_own_app_may() -> None:
    rule = re.compile(r"^\s*(?:from|import) (?:perdure\.(?!sdk\b|tables\b|client\b)|tests\b|bench\b)", re.MULTILINE)
    faults = [path for path in files() if path.startswith("perdure/examples/") and rule.search(text_of(path))]
    assert not [path for path in faults if path.endswith(".py")]


def test_a_package_without_a_rule_and_a_rule_for_nobody_are_found() -> None:
    sections = {
        "importlinter": {"root_packages": "one gone"},
        "importlinter:contract:one": {"source_modules": "one\none.lost", "forbidden_modules": "os"},
    }
    assert faults(sections, {"one", "two"}, {"one", "two"}) == [
        "root_packages names gone, which is not there",
        "add two to root_packages",
        "no contract says what two may import",
        "importlinter:contract:one names one.lost, which is not there",
    ]
