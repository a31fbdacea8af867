"""A Markdown file that begins with YAML between two lines of `---`, each part with the lines of the whole file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure.apps.problems import AppProblem
from perdure.apps.text_file import read_text
from perdure.apps.yaml_file import YamlFile, parse_yaml

_FENCE = "---"
_HEADING = re.compile(r"## +(?P<title>.*?)[ #]*\Z")
_CODE_FENCE = re.compile(r" {0,3}(```+|~~~+)")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a body under a heading of the second level."""

    title: str
    line: int
    """Of its heading, in the file."""
    text: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """The two parts of a file."""

    front: YamlFile
    body: str
    body_line: int
    """The line after the second fence."""

    def sections(self) -> Iterator[Section]:
        """The sections of the body; a heading inside fenced code is none."""
        title, start, lines, fence = "", 0, [], ""
        for number, line in enumerate(self.body.split("\n"), self.body_line):
            mark = _CODE_FENCE.match(line)
            if mark and (not fence or mark[1].startswith(fence)):
                fence = "" if fence else mark[1]
            heading = None if fence or mark else _HEADING.match(line)
            if heading is None:
                lines.append(line)
                continue
            if start:
                yield Section(title, start, "\n".join(lines))
            title, start, lines = heading["title"], number, []
        if start:
            yield Section(title, start, "\n".join(lines))


def read_front_matter(path: Path) -> FrontMatter | list[AppProblem]:
    """The file at `path`, or why it cannot be taken."""
    text = read_text(path)
    if isinstance(text, AppProblem):
        return [text]
    lines = text.split("\n")
    if lines[0].rstrip() != _FENCE:
        return [AppProblem(path, 1, "must begin with a line of --- and the fields of the skill under it")]
    end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        return [AppProblem(path, 1, "the fields that begin here are never ended by a second line of ---")]
    front = parse_yaml(path, "\n" + "\n".join(lines[1:end]))  # an empty line for the fence keeps the numbers
    if not isinstance(front, YamlFile):
        return front
    return FrontMatter(front, "\n".join(lines[end + 1 :]).strip("\n"), _first_line(lines, end + 1) + 1)


def _first_line(lines: list[str], start: int) -> int:
    """The index of the first line from `start` that is not empty."""
    return next((number for number in range(start, len(lines)) if lines[number]), start)
