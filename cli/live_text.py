"""The answer as it grows on the screen, and how a `reset` takes it back.

A new attempt of a model call voids the text of the one before. On a terminal that text is erased and written anew;
where it cannot be erased (a pipe, or it has scrolled away) a line says that it is void. So nobody reads doubled text.
"""

import shutil
from typing import TextIO

from rich.cells import cell_len

from policy.printable import printable

VOID = "[the text above is void: it is written again below]"


class LiveText:
    """One writer of one text at a time."""

    def __init__(self, stream: TextIO, *, terminal: bool | None = None) -> None:
        self._stream = stream
        self._terminal = stream.isatty() if terminal is None else terminal
        self.shown = ""
        """What stands on the screen since the last line of somebody else."""

    def write(self, text: str) -> None:
        """The next piece."""
        made_safe = printable(text)
        self.shown += made_safe
        self._out(made_safe)

    def take_back(self) -> None:
        """All of it is void."""
        if not self.shown:
            return
        size = shutil.get_terminal_size()
        rows = rows_below_start(self.shown, size.columns)
        if self._terminal and rows < size.lines:
            self._out("\r" + (f"\x1b[{rows}A" if rows else "") + "\x1b[J")
        else:
            self._out(f"\n{VOID}\n")
        self.shown = ""

    def end(self) -> None:
        """Whatever is written next begins on a line of its own."""
        if self.shown and not self.shown.endswith("\n"):
            self._out("\n")
        self.shown = ""

    def line(self, text: str) -> None:
        """A line that is not part of the text."""
        self.end()
        self._out(printable(text) + "\n")

    def _out(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def rows_below_start(text: str, columns: int) -> int:
    """How many rows below the row where `text` began the cursor stands, on a terminal this wide."""
    row = column = 0
    for character in text:
        if character == "\n":
            row, column = row + 1, 0
            continue
        width = 8 - column % 8 if character == "\t" else cell_len(character)
        if column + width > columns:
            # A terminal wraps when the next character comes, not when the row is full.
            row, column = row + 1, 0
        column += width
    return row
