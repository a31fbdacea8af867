"""Markers with which a model selects a skill in its text: `SKILL_SELECT:<id>` or `LOAD_SKILL: <id>`.

Case, spaces and brackets do not matter: `[skill_select: tea]`, `**Load_Skill:** tea`, `load_skill("tea")` and a marker
in a code fence of its own are markers too. No reader sees a marker, or a part of one. A marker that the text negates
("I will not LOAD_SKILL: tea") selects nothing, but is not shown either. The names in small letters or with a space
occur in prose, so those are markers only with the id of a skill that the agent has. Another id is one only directly
after the colon of a name in capitals. In doubt a marker loads its skill: a load costs one text, a miss the answer.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

_ID: Final = r"[a-z][a-z0-9_-]{0,199}"
_OPEN: Final = "([{<"
_CLOSE: Final = ")]}>"
_LIKE: Final = "`*\"'"
_FLAGS: Final = re.IGNORECASE | re.ASCII
_MARKER: Final = re.compile(
    r"(?P<space>[ \t\n]{0,8})(?P<fence>```[a-z]{0,12}[ \t]{0,2}\n[ \t]{0,4})?(?P<open>[\[({<`*\"']{0,4})"
    r"(?<![a-z0-9_])(?P<name>skill[_ -]select|load[_ -]skill)"
    r"(?P<before>[ \t`*\"'\])}>]{0,8}[:=(\[<{][ \t`*\"'\[({<]{0,8}"
    rf"(?:skill(?:_id)?[ ]?[:=][ ]?[\"'`]?)?)(?P<id>{_ID})(?P<close>[\])}}>`*\"']{{0,8}})"
    r"(?P<end>[ \t]{0,4}\n[ \t]{0,4}```)?",
    _FLAGS,
)


def _prefixes(*atoms: str) -> str:
    """Returns a pattern for every start of a text that consists of these parts."""
    pattern = ""
    for atom in reversed(atoms):
        pattern = f"(?:{atom}{pattern})?"
    return pattern


def _letters(name: str) -> list[str]:
    first, second = name.split()
    return [*first, "[_ -]", *second]


_REST: Final = _prefixes(
    r"[ \t`*\"'\])}>]{0,8}", r"[:=(\[<{]", r"[ \t`*\"'\[({<]{0,8}", _ID, "[ ]?", "[:=]?", "[ ]?", "[\"'`]?",
    f"(?:{_ID})?", r"[\])}>`*\"']{0,8}", r"[ \t]{0,4}", r"\n", r"[ \t]{0,4}", "`", "`", "`",
)  # fmt: skip
_BEGUN: Final = "|".join(
    f"(?<![a-z0-9_]){letters[0]}{_prefixes(*letters[1:-1], letters[-1] + _REST)}"
    for letters in (_letters("skill select"), _letters("load skill"))
)
_HELD: Final = re.compile(
    rf"[ \t\n]{{0,8}}(?:(?:```[a-z]{{0,12}}[ \t]{{0,2}}\n[ \t]{{0,4}})?[\[({{<`*\"']{{0,4}}(?:{_BEGUN})?"
    r"|`{1,3}|```[a-z]{0,12}[ \t]{0,2})\Z",
    _FLAGS,
)
"""A text that more text can make a marker, or a part of one."""
_CAPITALS: Final = frozenset({"SKILL_SELECT", "LOAD_SKILL"})
_UNKNOWN: Final = re.compile(r"[`*\"'\])}>]*:[`*\"'\[({<]*")
"""The text between the name and an id that the agent does not have."""
_CUT: Final = re.compile(r"(?<![A-Za-z0-9_])(?:SKILL_SELECT|LOAD_SKILL)[`*\"'\])}>]{0,8}:")
_CLAUSE: Final = re.compile(
    r"[.!?;:,\n()\[\]{}<>\u2013\u2014\u2192]|(?:^|\s)-+(?=\s|$)|\b(?:and|but|so|therefore|then)\b", re.IGNORECASE
)
_NEGATION: Final = re.compile(
    r"\b(?:not|never|no|cannot|without|avoid|avoiding|refuse|skip|instead of|rather than|nor|neither)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_NEGATED_AFTER: Final = re.compile(
    r"[ \t`*\"')\]]{0,8}(?:(?:is|was|are|would be|will be|does|do|should|must|can)[ ]?)?"
    r"(?:(?:not|n['\u2019]t|never)[ ](?:really[ ])?(?:be|need\w*|necessary|requir\w+|us\w+|relevant|appl\w+|help\w*)"
    r"|unnecessary)\b",
    re.IGNORECASE,
)
"""A negation on the line of the marker that is about the skill; `is not loaded yet` is about its state."""
_NEGATED_DIRECTLY: Final = re.compile(rf"(?:{_NEGATION.pattern})[ \t]*\Z", re.IGNORECASE)
"""A negation whose object is a marker in brackets."""
_CONTEXT: Final = 200
"""Characters before a marker in which a negation is searched."""
MAX_SELECTED: Final = 20
"""Further markers are ignored, so that a runaway answer does not fill a history."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A marker in a text."""

    start: int
    """The start of what is removed, after the white space before it."""
    end: int
    space: str
    """The white space before it."""
    skill_id: str


def selected_skills(text: str, known: Collection[str]) -> tuple[str, ...]:
    """Returns the ids that a model's whole answer selects, in order, each once, also ids that the agent does not have.
    `known` are the ids of the agent's skills."""
    found = [each for each in _find_all(text, known) if not _is_negated(text, each)]
    return tuple(dict.fromkeys(each.skill_id for each in found))[:MAX_SELECTED]


def without_markers(text: str, known: Collection[str]) -> str:
    """Returns the text as readers see it."""
    markers = MarkerFilter(frozenset(known))
    return markers.feed(text) + markers.rest()


def _find_all(text: str, known: Collection[str]) -> Iterator[_Found]:
    position = 0
    while (match := _MARKER.search(text, position)) is not None:
        found = _accept(match, known)
        position = match.end("name") if found is None else found.end
        if found is not None:
            yield found


def _accept(match: re.Match[str], known: Collection[str]) -> _Found | None:
    """Returns the marker without brackets that it does not close, or None if it is prose."""
    skill_id = match["id"].lower().replace("-", "_").strip("_")
    if skill_id not in known and not (match["name"] in _CAPITALS and _UNKNOWN.fullmatch(match["before"])):
        return None
    stack, kept = _still_open(match["open"], match["before"])
    closed = 0
    for character in match["close"]:
        if not stack or character != _closing(stack[-1]):
            break
        stack.pop()
        kept, closed = min(kept, len(stack)), closed + 1
    start, end = match.start("open") + kept, match.end("id") + closed
    if match["fence"] and match["end"] and not kept and closed == len(match["close"]):
        start, end = match.start("fence"), match.end()
    outside = kept or (match["fence"] and start != match.start("fence"))
    return _Found(start, end, "" if outside else match["space"], skill_id)


def _is_begun(match: re.Match[str], known: Collection[str]) -> bool:
    """Returns whether the text ends within a marker: its name is in capitals, and a known id begins with its id."""
    is_last, begun = match.end() == len(match.string), match["id"].lower().replace("-", "_")
    return is_last and match["name"] in _CAPITALS and any(each.startswith(begun) for each in known)


def _still_open(outer: str, inner: str) -> tuple[list[str], int]:
    """Returns the brackets and quotes that are open before the id, and how many of them are of the `outer` ones."""
    stack, kept = [*outer], len(outer)
    for character in inner:
        if stack and character == _closing(stack[-1]):
            stack.pop()
            kept = min(kept, len(stack))
        elif character in _OPEN or character in _LIKE:
            stack.append(character)
    return stack, kept


def _closing(character: str) -> str:
    return _CLOSE[_OPEN.index(character)] if character in _OPEN else character


def _is_negated(text: str, marker: _Found) -> bool:
    """Returns whether the clause around the marker negates it. Two negations do not ("I cannot answer without")."""
    before = text[max(0, marker.start - _CONTEXT) : marker.start]
    outside = before.rstrip(" \t`*\"'([{<")
    is_apart = text[marker.start : marker.start + 4].lstrip("`*\"'")[:1] in tuple(_OPEN) or any(
        each in _OPEN for each in before[len(outside) :]
    )
    if _NEGATED_AFTER.match(text, marker.end):
        return True
    clause = _CLAUSE.split(outside)[-1]
    return len(_NEGATION.findall(clause)) % 2 == 1 and (not is_apart or bool(_NEGATED_DIRECTLY.search(clause)))


@dataclass(slots=True)
class MarkerFilter:
    """Removes markers from a text that arrives in pieces. The pieces that it returns are the same text however the
    text is cut, and none has a part of a marker."""

    known: frozenset[str]
    _buffer: str = ""
    _before: str = ""
    """The character before the buffer."""
    _shown: str = ""
    """The end of the text so far, in which a marker could have begun."""
    _gap: str | None = None
    """The white space where a marker was removed; None if text has followed."""

    def feed(self, text: str) -> str:
        """Returns the part of the text that can be shown. The start of a possible marker is held back."""
        self._buffer += text
        return self._take(ended=False)

    def rest(self) -> str:
        """Returns what is held back when the text ends here. Changes nothing."""
        other = MarkerFilter(self.known, self._buffer, self._before, self._shown, self._gap)
        return other._take(ended=True)

    def _take(self, *, ended: bool) -> str:
        shown: list[str] = []
        text, position = self._before + self._buffer, len(self._before)
        while True:
            match = _MARKER.search(text, position)
            if match is None or not (ended or _HELD.match(text, match.start()) is None):
                break
            found = _accept(match, self.known)
            if found is None and ended and _is_begun(match, self.known):
                shown.append(self._show(text[position : match.start()]))
                position = len(text)
            elif found is None:
                shown.append(self._show(text[position : match.end("name")]))
                position = match.end("name")
            else:
                shown.append(self._show(text[position : found.start - len(found.space)]))
                self._gap = self._gap or found.space
                position = found.end
        held = _HELD.search(text, position)
        until = len(text) if held is None else held.start()
        shown.append(self._show(text[position:until]))
        self._before, self._buffer = text[max(0, until - 1) : until], text[until:]
        if ended and _CUT.search(self._buffer) is None:
            shown.append(self._show(self._buffer.rstrip() if self._gap is not None else self._buffer))
        return "".join(shown)

    def _show(self, text: str) -> str:
        """Returns the text, with the gap that a removed marker leaves before it."""
        if self._gap is not None and text:
            rest = text.lstrip(" \t") if self._shown else text.lstrip()
            gap = self._gap or ("" if rest == text else " ")
            self._gap = gap
            if not rest:
                return ""
            text = self._joined(gap, rest)
            self._gap = None
        self._shown = (self._shown + text)[-_CONTEXT:]
        return text

    def _joined(self, gap: str, rest: str) -> str:
        begun = _BEGUN_END.search(self._shown)
        if begun is not None and (not gap or len(begun[0]) > 3):
            return "\n" + rest.lstrip()  # otherwise both parts could read as a marker
        if not self._shown or rest[0] == "\n":
            return rest
        if "\n" in gap:
            return gap + rest
        return f" {rest}" if gap and rest[0] not in ".,;:!?)]}" else rest


_BEGUN_END: Final = re.compile(rf"(?:{_BEGUN})\Z", _FLAGS)
