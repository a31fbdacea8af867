"""The text of a module that can change what it does, line by line.

Comments, blank lines, trailing whitespace, statements that are only a string (docstrings), and the arguments of
decorators are left out. All other text stays as it is. Line breaks are `\\n`, whatever the file has. Lines within
other strings stay unchanged.

The text is read with `tokenize`, and the positions with `ast`. Only their positions are used, so the result is equal in
all versions of Python that can read the file.
"""

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence

_Cut = tuple[int, int, int, int, str]
"""First line, first column, last line, last column, and the text instead. Lines begin with 0."""

_OPENING = {"FSTRING_START", "TSTRING_START"}
_CLOSING = {"FSTRING_END", "TSTRING_END"}
"""Parts of an f-string since Python 3.12. Before, it is one token."""


def kept_lines(text: str, tree: ast.Module) -> list[str | None]:
    """Returns each line of `text`, whose syntax tree is `tree`, as it is compared; None for a line that is left out.

    Raises: TokenError; SyntaxError.
    """
    lines = text.split("\n")
    comments, string_ends = _tokens(text)
    cuts = [*comments, *_docstrings(tree, lines), *_decorator_arguments(tree, lines)]
    by_line: dict[int, list[tuple[int, int, str]]] = {}
    for first, start, last, end, instead in sorted(cuts):
        string_ends -= set(range(first, last))
        for line in range(first, last + 1):
            begin = start if line == first else 0
            stop = end if line == last else len(lines[line])
            by_line.setdefault(line, []).append((begin, stop, instead if line == first else ""))
    kept: list[str | None] = []
    for number, whole in enumerate(lines):
        shown = _without(whole, by_line.get(number, ()))
        if number not in string_ends:
            shown = shown.rstrip()
        is_in_string = number in string_ends or number - 1 in string_ends
        kept.append(shown if shown or is_in_string else None)
    return kept


def _without(line: str, cuts: Sequence[tuple[int, int, str]]) -> str:
    parts, position = [], 0
    for start, end, instead in cuts:
        if start >= position:  # not within an earlier cut, such as a comment among the arguments of a decorator
            parts += [line[position:start], instead]
        position = max(position, end)
    return "".join([*parts, line[position:]])


def _tokens(text: str) -> tuple[list[_Cut], set[int]]:
    """Returns the comments, and the lines whose end is within a string."""
    comments: list[_Cut] = []
    string_ends: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first, last, kind = token.start[0] - 1, token.end[0] - 1, tokenize.tok_name[token.type]
        if kind == "COMMENT" and not opened:
            comments.append((first, token.start[1], last, token.end[1], ""))
        elif kind == "STRING":
            string_ends.update(range(first, last))
        elif kind in _OPENING:
            opened.append(first)
        elif kind in _CLOSING:
            string_ends.update(range(opened.pop(), last))
    return comments, string_ends


def _docstrings(tree: ast.Module, lines: Sequence[str]) -> Iterator[_Cut]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield (*_start(node, lines), *_end(node, lines), "")


def _decorator_arguments(tree: ast.Module, lines: Sequence[str]) -> Iterator[_Cut]:
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            called = decorator
            while isinstance(called, ast.Call):
                called = called.func
            if called is not decorator:
                yield (*_end(called, lines), *_end(decorator, lines), "()")


def _start(node: ast.expr | ast.stmt, lines: Sequence[str]) -> tuple[int, int]:
    return node.lineno - 1, _column(lines[node.lineno - 1], node.col_offset)


def _end(node: ast.expr | ast.stmt, lines: Sequence[str]) -> tuple[int, int]:
    line, offset = node.end_lineno or node.lineno, node.end_col_offset or 0
    return line - 1, _column(lines[line - 1], offset)


def _column(line: str, offset: int) -> int:
    """Returns the column of an offset of a syntax tree, which counts bytes."""
    return offset if line.isascii() else len(line.encode()[:offset].decode())


def code_text(text: str) -> str:
    """Returns the text of a source file as it is compared; the whole text if it cannot be read."""
    try:
        kept = kept_lines(text, ast.parse(text))
    except (SyntaxError, tokenize.TokenError, ValueError, RecursionError):
        return text
    return "\n".join(line for line in kept if line is not None)
