"""The body of a skill (tier 2): its sections, and the sizes of what a model reads of a skill.

Sizes are those of S0-64: a manifest entry has about 50 tokens, a body 200 to 800. What has more is told; what has more
than twice as much is refused, for every call of every agent with the skill would pay for it.
"""

from collections.abc import Iterator

from perdure.apps.front_matter import FrontMatter
from perdure.apps.problems import AppProblem
from perdure.apps.yaml_file import Place, YamlFile
from policy.text import estimated_tokens

SECTIONS = ("Steps", "Requirements", "Output format")
"""What a body must have (S0-63)."""
ENTRY_TOKENS = 50
BODY_TOKENS = 800
_OWN_SECTIONS = ("description", "entity context")
"""Written by the engine around the body."""


def body_problems(read: FrontMatter) -> Iterator[AppProblem]:
    """What is wrong with the sections of a body, and with its length."""
    path = read.front.path
    seen: set[str] = set()
    for section in read.sections():
        title = section.title.lower()
        if title in _OWN_SECTIONS:
            yield AppProblem(path, section.line, f"the engine writes the section {section.title!r} itself; take it out")
        elif title in seen:
            yield AppProblem(path, section.line, f"the section {section.title!r} is there twice")
        elif not section.text.strip():
            yield AppProblem(path, section.line, f"the section {section.title!r} is empty")
        seen.add(title)
    for wanted in SECTIONS:
        if wanted.lower() not in seen:
            yield AppProblem(path, read.body_line, f"the section '## {wanted}' is missing")
    yield from too_long(YamlFile(path, None, {(): read.body_line}), (), "the body", read.body, BODY_TOKENS)


def entry_problems(front: YamlFile, entry: str) -> Iterator[AppProblem]:
    """What is wrong with the length of an entry in the manifest."""
    yield from too_long(front, ("description",), "the skill's entry in the manifest", entry, ENTRY_TOKENS)


def too_long(file: YamlFile, place: Place, what: str, text: str, tokens: int) -> Iterator[AppProblem]:
    """A warning over `tokens`, a mistake over twice as many."""
    have = estimated_tokens(text)
    told = f"{what} has about {have} tokens, more than the {tokens} that it should have"
    if have > 2 * tokens:
        yield file.problem(place, f"{told} and the {2 * tokens} that it may have")
    elif have > tokens:
        yield file.warning(place, told)
