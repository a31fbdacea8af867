"""Puts the pieces of a streamed answer together: halves of characters, reasoning inside the content."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Literal

from perdure.core.text import clean, is_blank

_OPEN, _CLOSE = "<think>", "</think>"
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_QUOTE_OPENS = re.compile(r"""(?:^|[\s(\[{])["'\u201c\u2018\u00ab]$""")
_MENTIONS = 20
"""The number of closing tags that are searched for the end of reasoning."""
Piece = tuple[Literal["words", "reasoning", "reread"], str]
"""A piece of the content with its kind. `reread`: all words so far were this reasoning."""


class Halves:
    """Joins the two halves of a surrogate pair that arrive in two pieces. A half that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, text: str) -> str:
        """Returns the storable text up to here, without a first half at its end, which waits for the second."""
        if not text:
            return ""
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return clean(text)

    def end(self) -> str:
        """Returns what still waits."""
        rest, self._half = clean(self._half), ""
        return rest


class ContentReader:
    """Separates the reasoning at the beginning of an answer from its words. White space before the first word is held
    back, so that an answer of white space has no text. Line ends after reasoning are dropped; a space stays, since the
    answer can continue an earlier one.

    Reasoning is in `<think>` tags. Some models' templates contain the opening tag, so that only `</think>` arrives.
    Then all words before it were reasoning: one piece of the kind `reread`.
    """

    def __init__(self) -> None:
        self.reasons_elsewhere = False
        """True if the server sends the reasoning outside the content. A lone closing tag is then a word."""
        self._state: Literal["beginning", "reasoning", "words"] = "beginning"
        self._blanks: list[str] = []
        self._words: list[str] = []
        self._last = ""
        """The end of the words, which can be the beginning of a closing tag."""
        self._has_reasoned = False
        self._tag = ""
        """The end of the text so far, if it may be the beginning of a tag."""

    def add(self, text: str) -> Iterator[Piece]:
        """Yields what is certain after this piece, and words."""
        text, self._tag = self._tag + text, ""
        while text:
            if self._state == "words":
                self._words.append(text)
                read = self._reread() if self._has_closing_tag(text) else None
                if read is None:
                    yield "words", text
                    return
                reasoning, text = read
                yield "reread", reasoning
                self._state = "beginning"
                continue
            if self._state == "beginning":
                text = self._begin(text)
                continue
            reasoning, found, text = text.partition(_CLOSE)
            if found:
                self._state = "beginning"
            else:
                self._tag = _start_at_end(reasoning)
                reasoning = reasoning.removesuffix(self._tag)
            if reasoning:
                yield "reasoning", reasoning

    def _begin(self, text: str) -> str:
        """Returns the rest to read in the next state; empty if the state must wait for more."""
        seen = text.lstrip()
        if is_blank(text):
            self._blanks.append(text)
        elif any(tag.startswith(seen) and seen != tag for tag in (_OPEN, _CLOSE)):
            self._blanks.append(text.removesuffix(seen))
            self._tag = seen
        elif seen.startswith((_OPEN, _CLOSE)):
            opens = seen.startswith(_OPEN)
            self._state, self._has_reasoned = "reasoning" if opens else "beginning", True
            self._blanks.clear()
            return seen.removeprefix(_OPEN if opens else _CLOSE)
        else:
            self._state = "words"
            return self._with_blanks(text)
        return ""

    def end(self) -> Iterator[Piece]:
        """Yields what was held back and is neither a tag nor white space alone."""
        rest, self._tag = self._tag, ""
        if rest and self._state == "reasoning":
            yield "reasoning", rest
        elif rest:
            yield "words", self._with_blanks(rest)
        read = self._reread(ended=True) if self._state == "words" else None
        if read is not None:
            reasoning, words = read
            yield "reread", reasoning
            if not is_blank(words):
                yield "words", words.lstrip("\r\n")

    def _has_closing_tag(self, text: str) -> bool:
        """Returns whether these words complete a closing tag."""
        if self._has_reasoned or self.reasons_elsewhere:
            return False
        tail = self._last + text
        self._last = tail[1 - len(_CLOSE) :]
        return _CLOSE in tail

    def _reread(self, *, ended: bool = False) -> tuple[str, str] | None:
        """Returns the reasoning and the words, if a closing tag separates what was read as words."""
        if self._has_reasoned or self.reasons_elsewhere:
            return None
        words = "".join(self._words)
        self._words = [words]
        at = lone_closing_tag(words, ended=ended)
        if at is None:
            return None
        self._has_reasoned = True
        self._words.clear()
        self._blanks.clear()
        return words[:at], words[at + len(_CLOSE) :]

    def _with_blanks(self, text: str) -> str:
        """Returns `text` after what was held back; after reasoning, without the line ends that separate them."""
        whole = "".join(self._blanks) + text
        return whole.lstrip("\r\n") if self._has_reasoned else whole


def lone_closing_tag(text: str, *, ended: bool) -> int | None:
    """Returns where the first `</think>` ends reasoning that no tag began; None if there is none.

    A tag in code or in quotes is a word of the text. When the text has `ended`, code that nothing closes is not code.
    """
    for found in islice(re.finditer(_CLOSE, text), _MENTIONS):
        before, after = text[: found.start()], text[found.end() :]
        if _OPEN in before:
            return None
        fenced = len(_FENCE.findall(before)) % 2 == 1
        in_code = fenced or before.rpartition("\n")[2].count("`") % 2 == 1
        closed = _FENCE.search(after) if fenced else "`" in after.partition("\n")[0]
        if not (in_code and (closed or not ended)) and not _QUOTE_OPENS.search(before):
            return found.start()
    return None


def _start_at_end(text: str) -> str:
    """Returns the longest end of `text` that is a beginning of the closing tag."""
    return next((_CLOSE[:size] for size in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:size])), "")


def text_of_parts(content: object) -> object:
    """Returns content that came as a list of text parts as one text, and any other content unchanged."""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return content
    texts = [part.get("text") for part in content if part.get("type", "text") == "text"]
    whole = len(texts) == len(content) and all(isinstance(text, str) for text in texts)
    return "".join(map(str, texts)) if whole else content
