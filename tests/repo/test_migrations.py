"""The migrations are one line of descent, and the store waits for its last one."""

import re

import pytest

from perdure.store.migrations import NEWEST
from tests.repo.committed import files, texts

FOLDER = "perdure/store/migrations/versions"


def revisions(sources: dict[str, str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for path, text in sources.items():
        revision = re.search(r'^revision\b.*= "(\w+)"', text, re.MULTILINE)
        before = re.search(r'^down_revision\b.*= (?:"(\w+)"|None)', text, re.MULTILINE)
        assert revision and before, f"{path} does not say revision and down_revision"
        assert revision[1] not in found, f"{path} repeats the revision {revision[1]}: number it anew"
        found[revision[1]] = before[1]
    return found


def line_of_descent(found: dict[str, str | None]) -> list[str]:
    """The revisions from the first to the last; fails where they are not one line."""
    after = {before: revision for revision, before in found.items()}
    assert len(after) == len(found), f"two migrations follow the same one: {found}"
    line, at = [], after.get(None)
    while at is not None:
        line.append(at)
        at = after.get(at)
    assert len(line) == len(found), f"these follow none that is there: {sorted(set(found) - set(line))}"
    return line


def sources() -> dict[str, str]:
    return dict(texts(".py", within=(FOLDER,)))


def test_the_store_waits_for_the_last_migration() -> None:
    line = line_of_descent(revisions(sources()))
    assert line[-1] == NEWEST, f"set NEWEST in perdure/store/migrations/__init__.py to {line[-1]!r}"


def test_files_are_named_by_their_revision_and_each_has_its_sql() -> None:
    for path, text in sources().items():
        (revision,) = revisions({path: text})
        assert path.startswith(f"{FOLDER}/{revision}_"), f"name {path} {revision}_<what it does>.py"
        assert path.removesuffix(".py") + ".sql" in files(), f"{path} has no .sql beside it"


@pytest.mark.parametrize("found", [{"1": None, "2": "1", "3": "1"}, {"1": None, "3": "2"}, {"2": "1", "1": "2"}])
def test_a_fork_a_gap_and_a_cycle_of_revisions_are_found(found: dict[str, str | None]) -> None:
    with pytest.raises(AssertionError):
        line_of_descent(found)
