"""A call's arguments in the reviewer's own editor, until they fit or the reviewer gives up.

The file is JSON, because what stands there is then exactly what runs: no text turns into a date, a number or `false`
unasked, and what cannot be seen is written as an escape. A person at a terminal gets the tool's schema above it, in
lines that begin with `//`; a string of JSON cannot hold a line end, so such a line is never part of a value. A program
as the editor gets the JSON alone, and one attempt.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cli.editor import EditFailed, edited_text
from policy.argument_text import Unfit, parsed, same
from policy.arguments import check_arguments
from policy.printable import one_line, pretty_json
from policy.schema_outline import outline

_COMMENT = "//"


@dataclass(slots=True)
class ArgumentEdit:
    """One person's attempts at one call's arguments."""

    before: Mapping[str, Any]
    schema: Mapping[str, Any]
    title: str
    """Of the file, where a person reads it."""
    by_person: bool
    _text: str = ""
    """What was written last, without the comments."""

    def opened(self, fault: str = "") -> dict[str, Any]:
        """What the editor left; after a `fault` it opens on what was written, with the fault above it.

        Raises: Unfit; EditFailed where there is no editor, or it failed, or nothing was changed.
        """
        text = self._text or pretty_json(self.before) + "\n"
        name = "arguments.jsonc" if self.by_person else "arguments.json"
        written = without_comments(edited_text(self._heading(fault) + text, name, "--args JSON"))
        if written.strip() == text.strip():
            again = "it is as it was, with the same fault; " if fault else ""
            raise EditFailed(f"{again}nothing is changed, so nothing was sent; to let it run as it is, approve it")
        self._text = written
        return self.read(written)

    def read(self, text: str) -> dict[str, Any]:
        """Arguments from JSON text that fit the tool and differ from those before.

        Raises: Unfit; EditFailed where they are the same.
        """
        args = parsed(text)
        checked = check_arguments(args, self.schema)
        if checked.fault is not None:
            raise Unfit(checked.fault)
        if same(args, self.before):
            raise EditFailed("nothing is changed, so nothing was sent; to let it run as it is, approve it")
        return args

    def _heading(self, fault: str) -> str:
        if not self.by_person:
            return ""
        lines = [f"{self.title}. Lines that begin with {_COMMENT} are not read."]
        lines += ["Leave it as it is to send nothing.", *(f"  {line}" for line in outline(self.schema))]
        if fault:
            lines += ["", f"NOT SENT: {one_line(fault, None)}"]
        return "".join(f"{_COMMENT} {line}".rstrip() + "\n" for line in lines)


def settled(edit: ArgumentEdit, send: Callable[[dict[str, Any]], str | None], tell: Callable[[str], None]) -> None:
    """Open the editor until `send` returns no fault; a program as the editor has one attempt.

    Raises: Unfit, EditFailed.
    """
    fault = ""
    while True:
        try:
            refused = send(edit.opened(fault))
            if refused is None:
                return
            raise Unfit(refused)
        except Unfit as unfit:
            if not edit.by_person:
                raise
            fault = str(unfit)
            tell(f"not sent: {fault}")


def without_comments(text: str) -> str:
    """The lines that are not comments."""
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith(_COMMENT)).strip("\n") + "\n"
