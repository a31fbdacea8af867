"""A turn on the screen: its text once, and a line for each thing that happens."""

import io
from typing import Any

from syrupy.assertion import SnapshotAssertion

from perdure.cli.chat import LiveText, TurnScreen
from perdure.cli.connection import command
from perdure.client import Event


def shown(*events: tuple[str, dict[str, Any]], details: bool = False) -> list[str]:
    """The lines on a screen that is no terminal."""
    stream = io.StringIO()
    screen = TurnScreen(LiveText(stream), details=details)
    for kind, data in events:
        screen.show(Event(kind, data, "1.0.0-0"))
    return stream.getvalue().splitlines()


def test_two_calls_speak_on_lines_of_their_own() -> None:
    lines = shown(
        ("token", {"call_id": "m1", "text": "I "}),
        ("token", {"call_id": "m1", "text": "ask."}),
        ("generation.complete", {"call_id": "m1"}),
        ("tool.executing", {"tool": "book", "attempt": 1}),
        ("tool.result", {"tool": "book"}),
        ("token", {"call_id": "m2", "text": "Booked."}),
        ("done", {"status": "completed", "tokens_used": 7, "cost_usd": 0.01, "duration_ms": 1500, "execution_id": "t"}),
    )
    assert lines[0] == "I ask." and "book" in lines[1] and "book" in lines[2] and lines[3] == "Booked."
    assert all(each in lines[4] for each in ("completed", "7", "$0.0100", "1.5 s", "t"))


def test_a_reset_of_the_call_that_speaks_voids_its_text() -> None:
    lines = shown(
        ("token", {"call_id": "m1", "text": "half"}),
        ("reset", {"call_id": "m1"}),
        ("token", {"call_id": "m1", "text": "whole"}),
    )
    assert lines[0] == "half" and lines[1] and lines[2] == "whole"


def test_each_event_has_its_line(snapshot: SnapshotAssertion) -> None:
    ran = {"ran": ["rag", "past"], "skipped": [{"tool": "goals", "why": "same_slice"}]}
    failed = {"failed": [{"tool": "slots", "code": "tool_failed", "message": "gone\x1b"}]}
    events: list[tuple[str, dict[str, Any]]] = [
        ("tool.approved", {"tool": "t", "decision": "edit", "by": "rita"}),
        ("tool.denied", {"tool": "t", "decision": "reject", "by": "r", "comment": "no\x1b"}),
        ("tool.denied", {"tool": "t", "reason": "expired"}),
        ("tool.denied", {"tool": "t", "reason": "withdrawn", "by": "r", "comment": "no need"}),
        ("tool.executing", {"tool": "t", "attempt": 2}),
        ("tool.error", {"tool": "t", "message": "gone"}),
        ("tool.error", {"tool": "t", "code": "outcome_unknown", "effect": "pdk_1"}),
        ("stage", {"stage": "context_assembly", "phase": 2, **ran, **failed}),
        ("stage", {"stage": "empathy", "tone": "calm"}),
        ("rate_limit", {"code": "model_rate_limited", "retry_in": 3.0}),
        ("workflow.error", {"code": "run_vanished", "message": "it is gone"}),
        ("stopped", {}),
        ("budget", {"code": "limit_spent", "message": "all spent", "approval_id": "A1", "turn_id": "T1"}),
        ("budget", {"code": "day_tokens_spent", "message": "none left"}),
    ]
    lines = shown(*events)
    assert "\x1b" not in "".join(lines)
    assert [line.replace(command(), "perdure") for line in lines] == snapshot


def test_an_event_that_needs_a_person_names_the_command_to_type() -> None:
    unknown = shown(("tool.error", {"tool": "t", "code": "outcome_unknown", "effect": "pdk_1"}))
    spent = shown(("budget", {"code": "limit_spent", "message": "", "approval_id": "A1", "turn_id": "T1"}))
    assert "effects settle pdk_1 happened" in unknown[1]
    assert "turns raise T1 --tokens" in spent[1] and "approvals reject A1" in spent[1]


def test_the_machinery_is_shown_only_to_who_asks_for_it() -> None:
    event = ("node_end", {"node": "tool_node", "data": {"status": "running"}})
    assert shown(event) == []
    (line,) = shown(event, details=True)
    assert "node_end" in line and "tool_node" in line and "running" not in line


def test_reasoning_is_shown_apart_from_the_answer_and_only_to_who_asks_for_it() -> None:
    events: list[tuple[str, dict[str, Any]]] = [
        ("thinking", {"call_id": "m1", "text": "Hm. "}),
        ("thinking", {"call_id": "m1", "text": "Well."}),
        ("token", {"call_id": "m1", "text": "Yes."}),
        ("thinking.complete", {"call_id": "m1", "duration": 1.5, "characters": 9}),
    ]
    assert shown(*events) == ["Yes."]
    assert shown(*events, details=True)[:2] == ["Hm. Well.", "Yes."]


def test_an_event_of_a_later_version_is_not_hidden() -> None:
    (line,) = shown(("skill.selected", {"skill": "spacing", "turn_id": "t"}))
    assert "skill.selected" in line and "spacing" in line
