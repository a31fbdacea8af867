"""No file of the engine is longer than 600 lines (a subject rarely needs more than 400)."""

import pytest

from tests.repo.committed import ENGINE, texts

MOST_LINES = 600
ALONE = ("perdure/settings.py", "worker.py")
"""What stands on top of the packages."""


def too_long(path: str, text: str) -> str | None:
    """What is wrong with the length of a file."""
    lines = len(text.splitlines())
    if lines <= MOST_LINES:
        return None
    return f"{path} has {lines} lines, more than {MOST_LINES}: it holds two nouns; give one a file of its own"


@pytest.mark.parametrize("package", [*ENGINE, *ALONE])
def test_no_file_of_the_engine_is_longer_than_the_limit(package: str) -> None:
    faults = [fault for path, text in texts(".py", within=(package,)) if (fault := too_long(path, text))]
    assert not faults, "\n".join(faults)


def test_a_file_of_one_line_too_many_is_found() -> None:
    assert too_long("a.py", "x\n" * MOST_LINES) is None
    assert f"{MOST_LINES + 1} lines" in (too_long("a.py", "x\n" * (MOST_LINES + 1)) or "")
