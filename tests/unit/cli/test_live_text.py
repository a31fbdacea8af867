"""Streamed text on a terminal: after a reset only the new text stands there, wherever lines were wrapped."""

import io
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perdure.cli.chat import VOID, LiveText, rows_below_start

COLUMNS, LINES = 20, 8


class Terminal(io.StringIO):
    """A terminal as far as it matters here: it wraps late, goes up, and clears to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = [""]
        self.row = 0

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[\d*[AJ]|\r|\n|.", text, re.DOTALL):
            if part.startswith("\x1b"):
                self._command(part)
            elif part == "\r":
                pass  # only ever written before a command that clears
            elif part == "\n":
                self._down()
            else:
                if cell_len(self.rows[self.row] + part) > COLUMNS:
                    self._down()
                self.rows[self.row] += part
        return len(text)

    def _command(self, command: str) -> None:
        if command.endswith("A"):
            self.row -= int(command[2:-1])
            assert self.row >= 0, "above the first row"
        else:
            self.rows = [*self.rows[: self.row], ""]

    def _down(self) -> None:
        self.row += 1
        self.rows = [*self.rows[: self.row], ""]


@pytest.fixture(autouse=True)
def _size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((COLUMNS, LINES)))


_TEXTS = st.text(alphabet="ab \n世é", max_size=60)


@given(st.lists(_TEXTS, max_size=4), _TEXTS)
def test_a_reset_leaves_nothing_of_the_old_text(old: list[str], new: str) -> None:
    terminal, expected = Terminal(), Terminal()
    live = LiveText(terminal, terminal=True)
    live.line("before")
    for piece in old:
        live.write(piece)
    if rows_below_start("".join(old), COLUMNS) >= LINES:
        return
    live.take_back()
    live.write(new)
    expected.write("before\n" + new)
    assert terminal.rows == expected.rows


def test_text_that_has_scrolled_away_is_said_to_be_void() -> None:
    terminal = Terminal()
    live = LiveText(terminal, terminal=True)
    live.write("line\n" * LINES + "half")
    live.take_back()
    assert "half" in terminal.rows and "".join(terminal.rows).endswith(VOID)


def test_a_pipe_gets_no_control_sequences() -> None:
    pipe = io.StringIO()
    live = LiveText(pipe)
    live.write("half a sen")
    live.take_back()
    live.write("a sentence")
    live.end()
    live.line("next")
    assert pipe.getvalue() == f"half a sen\n{VOID}\na sentence\nnext\n"


def test_a_reset_before_any_text_says_nothing() -> None:
    pipe = io.StringIO()
    LiveText(pipe).take_back()
    assert pipe.getvalue() == ""


def test_streamed_text_cannot_command_the_terminal() -> None:
    pipe = io.StringIO()
    LiveText(pipe, terminal=True).write("\x1b[2Jgone\u202e")
    assert pipe.getvalue() == "\\u001b[2Jgone\\u202e"


@pytest.mark.parametrize(
    ("text", "rows"),
    [("", 0), ("a" * 20, 0), ("a" * 21, 1), ("a" * 20 + "\n", 1), ("世" * 10, 0), ("a" + "世" * 10, 1), ("\t" * 3, 1)],
)
def test_rows_are_counted_as_a_terminal_wraps_them(text: str, rows: int) -> None:
    assert rows_below_start(text, COLUMNS) == rows
