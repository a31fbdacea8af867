"""A turn on the screen: its text once, and a line for each thing that happens."""

import io
import os
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from perdure.cli.chat import VOID_NOTICE, LiveText, TurnScreen, rows_below_start
from perdure.client import Event

RAN = {"ran": ["rag", "past"], "skipped": [{"tool": "goals", "why": "same_slice"}]}
FAILED = {"failed": [{"tool": "slots", "code": "tool_failed", "message": "gone\x1b"}]}
COLUMNS, LINES = 20, 8
_TEXTS = st.text(alphabet="ab \n世é", max_size=60)


def shown(*events: tuple[str, dict[str, Any]], details: bool = False) -> list[str]:
    """The lines on a screen that is no terminal."""
    stream = io.StringIO()
    screen = TurnScreen(LiveText(stream), details=details)
    for kind, data in events:
        screen.show(Event(kind, data, "1.0.0-0"))
    return stream.getvalue().splitlines()


def test_two_parallel_calls_stream_on_separate_lines() -> None:
    lines = shown(
        ("token", {"call_id": "m1", "text": "half"}),
        ("reset", {"call_id": "m1"}),
        ("token", {"call_id": "m1", "text": "I "}),
        ("token", {"call_id": "m1", "text": "ask."}),
        ("generation.complete", {"call_id": "m1"}),
        ("tool.executing", {"tool": "book", "attempt": 1}),
        ("tool.result", {"tool": "book"}),
        ("token", {"call_id": "m2", "text": "Booked."}),
        ("done", {"status": "completed", "tokens_used": 7, "cost_usd": 0.01, "duration_ms": 1500, "execution_id": "t"}),
    )
    assert lines.pop(0) == "half" and lines.pop(0), "a reset voids the text of the call that speaks"
    assert lines[0] == "I ask." and "book" in lines[1] and "book" in lines[2] and lines[3] == "Booked."
    assert all(each in lines[4] for each in ("completed", "7", "$0.0100", "1.5 s", "t"))


@pytest.mark.parametrize(("kind", "data", "named"), [
    ("tool.approved", {"tool": "t", "decision": "edit", "by": "rita", "comment": "so"}, ["edit", "rita: so"]),
    ("tool.denied", {"tool": "t", "decision": "reject", "by": "ann", "comment": "\x1b"}, ["reject", "ann", "\\u001b"]),
    ("tool.denied", {"tool": "t", "reason": "expired"}, ["expired"]),
    ("tool.denied", {"tool": "t", "reason": "expired", "kind": "checkpoint"}, ["result", "t", "expired"]),
    ("tool.denied", {"tool": "", "decision": "reject", "kind": "checkpoint"}, ["answer", "reject"]),
    ("tool.denied", {"tool": "t", "reason": "withdrawn", "by": "ann", "comment": "why"}, ["withdrawn", "ann", "why"]),
    ("tool.executing", {"tool": "t", "attempt": 2}, ["2"]),
    ("tool.error", {"tool": "t", "message": "gone"}, ["gone"]),
    ("tool.error", {"tool": "t", "message": "gone", "failure": "KeyError: 'a\x1b' at tools/desk.py:4"},
     ["KeyError: 'a\\u001b' at tools/desk.py:4"]),
    ("tool.error", {"tool": "t", "code": "outcome_unknown", "effect": "pdk_1"}, ["effects settle pdk_1"]),
    ("tool.error", {"tool": "t", "code": "outcome_unknown", "effect": "k", "known": {"message": "sent"}},
     ["sent.", "effects settle k"]),
    ("stage", {"stage": "context", "phase": 2, **RAN, **FAILED}, ["context", "2", "rag, past", "goals", "slots"]),
    ("stage", {"stage": "empathy", "tone": "calm"}, ["empathy", "calm"]),
    ("rate_limit", {"code": "model_rate_limited", "retry_in": 3.0}, ["model_rate_limited", "3 s"]),
    ("workflow.error", {"code": "run_vanished", "message": "it is gone"}, ["run_vanished", "it is gone"]),
    ("workflow.error", {"code": "model_auth", "message": "", "details": {"status": 401, "sentence": "bad key"}},
     ["401", "bad key"]),
    ("done", {"status": "completed", "truncated": True, "finish_reason": "length"}, ["truncated", "output limit"]),
    ("done", {"status": "completed", "truncated": True, "finish_reason": "content_filter"}, ["truncated", "filter"]),
    ("done", {"status": "stopped", "truncated": True}, ["truncated", "the turn ended"]),
    ("stopped", {}, []),
    ("budget", {"code": "limit_spent", "message": "", "approval_id": "A1", "turn_id": "T1"},
     ["turns raise T1", "approvals reject A1"]),
    ("budget", {"code": "day_tokens_spent", "message": "none left"}, ["none left"]),
])  # fmt: skip
def test_an_event_is_shown_with_its_data_and_the_command_to_type(kind: str, data: Any, named: list[str]) -> None:
    text = "\n".join(shown((kind, data)))
    assert text and "\x1b" not in text and [each for each in named if each not in text] == []


def test_internal_events_are_shown_only_with_their_option() -> None:
    event = ("node_end", {"node": "tool_node", "data": {"status": "running"}})
    assert shown(event) == []
    (line,) = shown(event, details=True)
    assert "node_end" in line and "tool_node" in line and "running" not in line
    (line,) = shown(("skill.selected", {"skill": "spacing", "turn_id": "t"}))  # an event of a later version
    assert "skill.selected" in line and "spacing" in line


def test_reasoning_is_marked_and_shown_only_with_its_option() -> None:
    events: list[tuple[str, dict[str, Any]]] = [
        ("thinking", {"call_id": "m1", "text": "Hm. "}),
        ("thinking", {"call_id": "m1", "text": "Well."}),
        ("token", {"call_id": "m1", "text": "Yes."}),
        ("thinking.complete", {"call_id": "m1", "duration": 1.5, "characters": 9}),
    ]
    assert shown(*events) == ["Yes."]
    assert shown(*events, details=True)[:2] == ["Hm. Well.", "Yes."]


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


@given(st.lists(_TEXTS, max_size=4), _TEXTS)
def test_a_reset_removes_all_of_the_old_text(old: list[str], new: str) -> None:
    terminal, expected = Terminal(), Terminal()
    live = LiveText(terminal, terminal=True)
    live.line("before")
    for piece in old:
        live.write(piece)
    if rows_below_start("".join(old), COLUMNS) >= LINES:
        return
    live.discard()
    live.write(new)
    expected.write("before\n" + new)
    assert terminal.rows == expected.rows


def test_text_that_scrolled_away_is_marked_as_void() -> None:
    terminal = Terminal()
    live = LiveText(terminal, terminal=True)
    live.write("line\n" * LINES + "half")
    live.discard()
    assert "half" in terminal.rows and "".join(terminal.rows).endswith(VOID_NOTICE)


def test_a_pipe_and_streamed_text_get_no_control_sequences() -> None:
    pipe = io.StringIO()
    LiveText(pipe).discard()  # a reset before any text says nothing
    LiveText(pipe, terminal=True).write("\x1b[2Jgone\u202e")
    assert pipe.getvalue() == "\\u001b[2Jgone\\u202e"
    live = LiveText(pipe := io.StringIO())
    live.write("half a sen")
    live.discard()
    live.write("a sentence")
    live.end()
    live.line("next")
    assert pipe.getvalue() == f"half a sen\n{VOID_NOTICE}\na sentence\nnext\n"


@pytest.mark.parametrize(("text", "rows"), [
    ("", 0), ("a" * 20, 0), ("a" * 21, 1), ("a" * 20 + "\n", 1), ("世" * 10, 0), ("a" + "世" * 10, 1), ("\t" * 3, 1),
])  # fmt: skip
def test_rows_are_counted_as_a_terminal_wraps_them(text: str, rows: int) -> None:
    assert rows_below_start(text, COLUMNS) == rows
