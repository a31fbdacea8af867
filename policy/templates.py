"""Context templates: text with `{{variable}}` of a closed list. What is filled in is never read again as a template."""

import re
from collections.abc import Iterator, Mapping

VARIABLES = ("user_name", "user_role", "agent_title", "skill_name")
_MARK = re.compile(r"\{\{(.*?)\}\}|\{\{")


def unknown_marks(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each mark that stands for no variable; the name is empty where a mark is never closed."""
    for number, line in enumerate(text.split("\n"), 1):
        for mark in _MARK.finditer(line):
            name = (mark[1] or "").strip()
            if name not in VARIABLES:
                yield number, name


def filled(text: str, values: Mapping[str, str]) -> str:
    """`text` with its variables; one without a value becomes empty, and what is no variable stays as it stands."""

    def value_of(mark: re.Match[str]) -> str:
        name = (mark[1] or "").strip()
        return values.get(name, "") if name in VARIABLES else mark[0]

    return _MARK.sub(value_of, text)
