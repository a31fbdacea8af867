"""Puts the pieces of a streamed answer together: halves of characters, reasoning inside the content, calls."""

import json
from collections.abc import Iterator, Mapping
from typing import Literal

from perdure.core.text import clean, is_blank

_OPEN, _CLOSE = "<think>", "</think>"


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
    """Separates the reasoning in `<think>` tags at the beginning of an answer from its words. White space before the
    first word is held back, so that an answer of white space has no text. Line ends after reasoning are dropped; a
    space stays, since the answer can continue an earlier one. Each piece is returned with whether it is reasoning."""

    def __init__(self) -> None:
        self._state: Literal["beginning", "reasoning", "words"] = "beginning"
        self._blanks: list[str] = []
        self._has_reasoned = False
        self._tag = ""
        """The end of the text so far, if it may be the beginning of a tag."""

    def add(self, text: str) -> Iterator[tuple[bool, str]]:
        """Yields what is certain after this piece."""
        text, self._tag = self._tag + text, ""
        while text:
            if self._state == "words":
                yield False, text
                return
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
                yield True, reasoning

    def _begin(self, text: str) -> str:
        """Returns the rest to read in the next state; empty if the state must wait for more."""
        seen = text.lstrip()
        if is_blank(text):
            self._blanks.append(text)
        elif _OPEN.startswith(seen) and seen != _OPEN:
            self._blanks.append(text.removesuffix(seen))
            self._tag = seen
        elif seen.startswith(_OPEN):
            self._state, self._has_reasoned = "reasoning", True
            self._blanks.clear()
            return seen.removeprefix(_OPEN)
        else:
            self._state = "words"
            return self._with_blanks(text)
        return ""

    def end(self) -> Iterator[tuple[bool, str]]:
        """Yields what was held back and is neither a tag nor white space alone."""
        rest, self._tag = self._tag, ""
        if rest:
            is_reasoning = self._state == "reasoning"
            yield is_reasoning, rest if is_reasoning else self._with_blanks(rest)

    def _with_blanks(self, text: str) -> str:
        """Returns `text` after what was held back; after reasoning, without the line ends that separate them."""
        whole = "".join(self._blanks) + text
        return whole.lstrip("\r\n") if self._has_reasoned else whole


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


def starts_another_call(known: tuple[str, str, str], id_: str, name: str, arguments: str) -> bool:
    """Returns whether a piece with a name, on the index of the `known` call (id, name, arguments so far), starts
    another call.

    Some servers send every call on index 0; others send a new id, and the name again, with every piece of one call.
    Arguments that are whole JSON are the end of a call. Without arguments so far, a new id is another call if the name
    is another one, or if the piece has no arguments either.
    """
    known_id, known_name, known_arguments = known
    if id_ and id_ == known_id:
        return False
    has_new_id = bool(id_ and known_id)
    if is_whole_json(known_arguments):
        return has_new_id or bool(arguments.strip())
    return has_new_id and (name != known_name or not (known_arguments or arguments).strip())


def joined_name(known: str, piece: str) -> str:
    """Returns a call's name after another piece of it. A name that is repeated whole stays itself."""
    return known if piece == known else known + piece


def is_whole_json(text: str) -> bool:
    """Returns whether `text` is a JSON value to which nothing can be added, so not a number."""
    end = text.rstrip()[-1:]
    if not end or end not in '}]"le':
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
