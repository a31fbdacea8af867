"""Matches the patterns of JSON Schemas, which are JavaScript's regular expressions, in bounded time.

A pattern is translated and then matched by Rust's engine, whose time grows linearly with the text. `regex` matches what
that engine lacks: lookaround, back references, very large repetitions. It stops at a deadline, whereas Python's `re`
backtracks for minutes on a pattern such as `^(a+)+$` and forty characters (measured).

JavaScript's rules are those of its `u` flag: `\\d` and `\\w` are ASCII, `\\u{61}` is a character, and `$` matches only
at the very end. Patterns that only Python writes (`(?P<name>`, `(?i)`, `\\A`, `\\Z`) are understood too.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import regex
from pydantic_core import SchemaError, SchemaValidator, core_schema

MAX_STEPS = 100_000_000
"""Steps up to which Rust's engine, which has no deadline, matches a text. They take about 0.2 s (measured)."""

_SPACE = r"\t\n\x0b\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACE.encode().decode("unicode_escape")}
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "0": "\0"}
_META = frozenset("\\.+*?()|[]{}^$#&-~")
_NEVER, _ALWAYS = r"[^\s\S]", r"[\s\S]"
_WORD_EDGE = "(?:(?<![A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<=[A-Za-z0-9_])(?![A-Za-z0-9_]))"


class _Position(Enum):
    """An empty match for which the engines differ: in Rust's form (None if it has none), and in that of `regex`."""

    END = r"\z", r"\Z"
    WORD_EDGE = r"(?-u:\b)", _WORD_EDGE
    NO_WORD_EDGE = None, f"(?!{_WORD_EDGE})"


_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
_GROUP = re.compile(r"\(\?(?:P?<(?P<name>[A-Za-z_$][\w$]*)>|P=(?P<same>\w+)\)|[a-zA-Z-]*[:)]|[=!]|<[=!])?")
_CODE_POINT = re.compile(
    r"u\{([0-9a-fA-F]{1,6})\}|u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|c([a-zA-Z])"
)


class InvalidPattern(ValueError):
    """The pattern is not a regular expression of JavaScript. The text gives the reason."""


_POSITIONS: Mapping[str, str | _Position] = {
    "b": _Position.WORD_EDGE, "B": _Position.NO_WORD_EDGE, "A": r"\A", "Z": _Position.END, "z": _Position.END,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern."""

    linear: Any
    """Rust's matcher, or None if its engine lacks something that the pattern uses."""
    steps_a_character: int
    """Upper bound for Rust's engine."""
    backtracking: Callable[[], Any]
    """Compiles the pattern for the engine with a deadline."""

    def found_in(self, text: str, seconds: float) -> bool:
        """Returns whether the pattern is found in the text.

        Raises: TimeoutError after `seconds`.
        """
        if self.linear is not None and self.steps_a_character * len(text) <= MAX_STEPS:
            return bool(self.linear.isinstance_python(text))
        return self.backtracking().search(text, timeout=seconds, concurrent=True) is not None


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Pattern:
    """Returns the compiled pattern.

    Raises: InvalidPattern.
    """
    translation = _Translation(pattern)
    backtracking = lru_cache(maxsize=1)(lambda: regex.compile(translation.backtracking(), regex.V1))
    try:
        linear = SchemaValidator(core_schema.str_schema(pattern=translation.linear(), regex_engine="rust-regex"))
    except (SchemaError, NotImplementedError):  # beyond the engine's limits, or an expression that it does not have
        linear = None
        try:
            backtracking()
        except regex.error as error:
            raise InvalidPattern(str(error)) from error
    return Pattern(linear, translation.steps, backtracking)


class _Translation:
    """Translates one pattern into a form that both engines read in the same way."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.position = 0
        self.is_regular = True
        self.steps = max(len(pattern), 1)
        flags = "".join(re.findall(r"\(\?([a-zA-Z]+)[-:)]", pattern))
        self.by_lines, self.dot_is_any, self.is_verbose = "m" in flags, "s" in flags, "x" in flags
        self.parts: list[str | _Position] = []
        while self.position < len(pattern):
            self.parts.append(self._next())

    def linear(self) -> str:
        """Returns the pattern in the form of Rust's engine.

        Raises: NotImplementedError if it cannot be matched in linear time.
        """
        parts = [part if isinstance(part, str) else part.value[0] for part in self.parts]
        if not self.is_regular or None in parts:
            raise NotImplementedError
        return "".join(part for part in parts if part)

    def backtracking(self) -> str:
        """Returns the pattern in the form of `regex`."""
        return "".join(part if isinstance(part, str) else part.value[1] for part in self.parts)

    def _next(self) -> str | _Position:
        character = self.pattern[self.position]
        if character in "\\[({":
            return {"\\": self._escape, "[": self._class, "(": self._group, "{": self._count}[character]()
        self.position += 1
        if character == "." and not self.dot_is_any:
            return "[^\n\r\u2028\u2029]"
        if character == "$" and not self.by_lines:
            return _Position.END
        return "\\" + character if character in "]}#&-~" and not self.is_verbose else character

    def _group(self) -> str:
        start = _GROUP.match(self.pattern, self.position)
        text = start[0] if start else "("
        self.position += len(text)
        if text in ("(?=", "(?!", "(?<=", "(?<!") or text.startswith("(?P="):
            self.is_regular = False
        if start and start["name"]:
            return f"(?P<{_group_name(start['name'])}>"
        return f"(?P={_group_name(start['same'])})" if start and start["same"] else text

    def _count(self) -> str:
        count = _COUNT.match(self.pattern, self.position)
        if not count:
            self.position += 1
            return r"\{"
        self.position = count.end()
        self.steps *= max(int(count[3] or count[1]), 1)
        return count[0]

    def _escape(self) -> str | _Position:
        """Translates an escape outside a character class."""
        letter = self.pattern[self.position + 1 : self.position + 2]
        if letter == "k" or letter in tuple("123456789"):
            return self._back_reference()
        if letter in _POSITIONS:
            self.position += 2
            return _POSITIONS[letter]
        if letter and letter.lower() in _CLASSES:
            self.position += 2
            return f"[{'' if letter in _CLASSES else '^'}{_CLASSES[letter.lower()]}]"
        return self._property() or _literal(self._character())

    def _back_reference(self) -> str:
        self.is_regular = False
        reference = re.compile(r"\\(?:k<([\w$]+)>|(\d+))").match(self.pattern, self.position)
        if not reference:
            raise InvalidPattern(f"invalid back reference at position {self.position}")
        self.position = reference.end()
        return f"(?P={_group_name(reference[1])})" if reference[1] else f"(?:\\{reference[2]})"

    def _property(self) -> str:
        """Translates `\\p{…}`; returns an empty text for any other escape."""
        named = re.compile(r"\\[pP](?:\{\^?[\w=]+\}|[A-Z])").match(self.pattern, self.position)
        if named:
            self.position = named.end()
        return named[0] if named else ""

    def _character(self) -> str:
        """Reads one character, escaped or not."""
        character = self.pattern[self.position]
        self.position += 1
        if character != "\\":
            return character
        point = _CODE_POINT.match(self.pattern, self.position)
        if point:
            self.position = point.end()
            return _of_code_point(point)
        if self.position == len(self.pattern):
            raise InvalidPattern("the pattern ends in a backslash")
        letter = self.pattern[self.position]
        self.position += 1
        return _CONTROLS.get(letter, letter)

    def _class(self) -> str:
        """Translates a character class."""
        start = self.position
        self.position += 1
        is_negated = self.pattern.startswith("^", self.position)
        self.position += is_negated
        parts = []
        while not self.pattern.startswith("]", self.position):
            if self.position >= len(self.pattern):
                raise InvalidPattern(f"the character class at position {start} does not end")
            parts.append(self._class_part())
        self.position += 1
        if not parts:
            return _ALWAYS if is_negated else _NEVER
        return f"[{'^' if is_negated else ''}{''.join(parts)}]"

    def _class_part(self) -> str:
        """Translates a character, a range or an escape within a character class."""
        letter = self.pattern[self.position + 1 : self.position + 2] if self.pattern[self.position] == "\\" else ""
        if letter and letter.lower() in _CLASSES:
            self.position += 2
            return _CLASSES[letter] if letter in _CLASSES else f"[^{_CLASSES[letter.lower()]}]"
        if letter == "b":
            self.position += 2
            return r"\x08"
        if named := self._property():
            return named
        first = self._character()
        is_range = re.compile(r"-(?!\]|\\[dDwWsSpP])").match(self.pattern, self.position)
        if not is_range:
            return _literal(first)
        self.position += 1
        if self.position >= len(self.pattern):
            raise InvalidPattern("a range in a character class does not end")
        last = self._character()
        if last < first:
            raise InvalidPattern(f"the range {first}-{last} is in reverse order")
        return f"{_literal(first)}-{_literal(last)}"


def _of_code_point(point: re.Match[str]) -> str:
    braced, high, low, four, two, control = point.groups()
    if control:
        return chr(ord(control) % 32)
    if high:
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    number = int(braced or four or two, 16)
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise InvalidPattern(f"U+{number:X} is not a character")
    return chr(number)


def _group_name(name: str) -> str:
    """Returns the name of a group without `$`, which only JavaScript allows. Each name has its own form."""
    return "n" + name.replace("_", "__").replace("$", "_d")


def _literal(character: str) -> str:
    return "\\" + character if character in _META else character
