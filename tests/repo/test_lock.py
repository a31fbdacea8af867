"""requirements.lock: every entry with its hashes, no address, and everything that pyproject.toml asks for."""

import re
import tomllib

from tests.repo.committed import text_of

ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def entries(text: str) -> dict[str, int]:
    """Returns the entries' names with their numbers of hashes. Raises ValueError for any other line but a comment."""
    found: dict[str, int] = {}
    name = ""
    for number, line in enumerate(text.splitlines(), 1):
        entry = ENTRY.match(line)
        if entry:
            name = f"{entry['name']}=={entry['version']}"
            found[name] = 0
        elif HASH.match(line) and name:
            found[name] += 1
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ValueError(f"line {number} is no entry of a lock: {line[:80]!r}; run make lock")
    return found


def test_every_locked_package_has_hashes_and_no_address_and_the_image_checks_them() -> None:
    bare = [name for name, hashes in entries(text_of("requirements.lock")).items() if hashes == 0]
    assert not bare, f"without a hash: {bare}; run make lock"
    option = r"^-{1,2}(?:i|index-url|extra-index-url|find-links|trusted-host)\b.*"
    found = re.findall(rf"\S*://\S+|{option}|\S+ @ \S+", text_of("requirements.lock"), re.M)
    assert not found, f"which registry is used is the machine's business: {found}"
    assert "--require-hashes" in text_of("deploy/Dockerfile")


def test_every_dependency_of_the_project_is_locked() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    names = {_plain(re.split(r"[\[<>=~!; ]", each)[0]) for each in asked}
    locked = {_plain(name.partition("==")[0]) for name in entries(text_of("requirements.lock"))}
    assert not names - locked, f"not in requirements.lock: {sorted(names - locked)}; run make lock"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
