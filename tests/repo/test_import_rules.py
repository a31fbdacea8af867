""".importlinter speaks of the packages that there are, and of all of them."""

import configparser
import re
from collections.abc import Mapping

from tests.repo.committed import files, text_of

BESIDE = frozenset({"bench", "tests"})
"""They may import everything, and nobody imports them: see below."""
MAY_IMPORT_LANGGRAPH = ("graph/compile.py", "graph/adopt.py")


def rules() -> Mapping[str, Mapping[str, str]]:
    """The sections of .importlinter."""
    read = configparser.ConfigParser()
    read.read_string(text_of(".importlinter"))
    return {name: dict(read[name]) for name in read.sections()}


def listed(section: Mapping[str, str], key: str) -> list[str]:
    """A list in a section."""
    return section.get(key, "").split()


def packages() -> set[str]:
    """The top folders of the checkout that hold Python."""
    return {path.split("/")[0] for path in files() if re.fullmatch(r"\w+/.*\.py", path)} - BESIDE


def modules() -> set[str]:
    """Every module and package of the checkout, dotted."""
    found = set()
    for path in files():
        if path.endswith(".py"):
            parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
            found |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return found


ROOTS = packages()


def faults(sections: Mapping[str, Mapping[str, str]], tops: set[str], there: set[str]) -> list[str]:
    """What is wrong with the rules."""
    roots = listed(sections["importlinter"], "root_packages")
    contracts = {name: section for name, section in sections.items() if name.startswith("importlinter:contract:")}
    sources = {each for section in contracts.values() for each in listed(section, "source_modules")}
    found = [f"root_packages names {name}, which is not there" for name in sorted(set(roots) - tops)]
    found += [f"add {name} to root_packages" for name in sorted(tops - set(roots))]
    found += [f"no contract says what {name} may import" for name in sorted(tops - sources)]
    for name, section in contracts.items():
        for module in [*listed(section, "source_modules"), *listed(section, "forbidden_modules")]:
            if module.split(".")[0] in tops and module not in there:
                found.append(f"{name} names {module}, which is not there")
    return found


def test_every_package_is_under_a_rule_and_every_name_in_a_rule_is_there() -> None:
    found = faults(rules(), packages(), modules())
    assert not found, "mend .importlinter:\n" + "\n".join(found)


def importing(pattern: str) -> set[str]:
    """The files of the packages that import one of these."""
    found = re.compile(rf"^\s*(?:from|import) (?:{pattern})\b", re.MULTILINE)
    ours = [path for path in files() if path.endswith(".py") and path.split("/")[0] in ROOTS]
    return {path for path in ours if found.search(text_of(path))}


def test_langgraph_is_imported_in_one_place() -> None:
    found = importing("langgraph|langchain_core") - set(MAY_IMPORT_LANGGRAPH)
    assert not found, f"{sorted(found)} import LangGraph: only {MAY_IMPORT_LANGGRAPH} may"


def test_no_package_imports_the_tests_the_benchmark_or_the_worker() -> None:
    found = importing("tests|bench|worker")
    assert not found, f"{sorted(found)} import what stands beside or on top of the packages"


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
