"""A turn on the screen: its text once, and a line for each thing that happens."""

import io
from typing import Any

import pytest

from perdure.cli.chat import LiveText, TurnScreen
from perdure.client import Event


def shown(*events: tuple[str, dict[str, Any]], details: bool = False) -> list[str]:
    """The lines on a screen that is no terminal."""
    stream = io.StringIO()
    screen = TurnScreen(LiveText(stream), details=details)
    for kind, data in events:
        screen.show(Event(kind, data, "1.0.0-0"))
    return stream.getvalue().splitlines()


def test_two_calls_speak_on_lines_of_their_own() -> None:
    assert shown(
        ("token", {"call_id": "m1", "text": "I "}),
        ("token", {"call_id": "m1", "text": "ask."}),
        ("generation.complete", {"call_id": "m1"}),
        ("tool.executing", {"tool": "book", "attempt": 1}),
        ("tool.result", {"tool": "book"}),
        ("token", {"call_id": "m2", "text": "Booked."}),
        ("done", {"status": "completed", "tokens_used": 7, "cost_usd": 0.01, "duration_ms": 1500, "execution_id": "t"}),
    ) == ["I ask.", "  → book runs", "  ✓ book is done", "Booked.", "  completed · 7 tokens · $0.0100 · 1.5 s · t"]


def test_a_reset_of_the_call_that_speaks_voids_its_text() -> None:
    lines = shown(
        ("token", {"call_id": "m1", "text": "half"}),
        ("reset", {"call_id": "m1"}),
        ("token", {"call_id": "m1", "text": "whole"}),
    )
    assert lines[0] == "half" and "void" in lines[1] and lines[2] == "whole"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("tool.approved", {"tool": "t", "decision": "edit", "by": "rita"}, "  ✓ t: edit by rita"),
        (
            "tool.denied",
            {"tool": "t", "decision": "reject", "by": "r", "comment": "no\x1b"},
            "  ✗ t: reject by r: no\\u001b",
        ),
        ("tool.denied", {"tool": "t", "reason": "expired"}, "  ✗ t: expired"),
        (
            "tool.denied",
            {"tool": "t", "reason": "withdrawn", "by": "r", "comment": "no need"},
            "  ✗ t: withdrawn by r: no need",
        ),
        ("tool.executing", {"tool": "t", "attempt": 2}, "  → t runs (attempt 2)"),
        ("tool.error", {"tool": "t", "message": "gone"}, "  ✗ t: gone"),
        (
            "stage",
            {
                "stage": "context_assembly",
                "phase": 2,
                "ran": ["rag", "past"],
                "skipped": [{"tool": "goals", "why": "same_slice"}],
                "failed": [{"tool": "slots", "code": "tool_failed", "message": "gone\x1b"}],
            },
            "  · stage stage=context_assembly phase=2: ran rag, past; skipped goals (same_slice); "
            "failed slots (gone\\u001b)",
        ),
        ("stage", {"stage": "empathy", "tone": "calm"}, "  · stage stage=empathy tone=calm"),
        ("rate_limit", {"code": "model_rate_limited", "retry_in": 3.0}, "asked again in 3 s"),
        ("workflow.error", {"code": "run_vanished", "message": "it is gone"}, "  ✗ run_vanished: it is gone"),
        ("stopped", {}, "  ■ stopped"),
    ],
)
def test_each_thing_that_happens_has_its_line(kind: str, data: dict[str, Any], line: str) -> None:
    assert shown((kind, data))[0].endswith(line)


def test_an_unknown_outcome_says_what_to_type() -> None:
    lines = shown(("tool.error", {"tool": "t", "code": "outcome_unknown", "effect": "pdk_1"}))
    assert "effects settle pdk_1 happened" in lines[1]


def test_the_machinery_is_shown_only_to_who_asks_for_it() -> None:
    event = ("node_end", {"node": "tool_node", "data": {"status": "running"}})
    assert shown(event) == []
    assert shown(event, details=True) == ["  · node_end node=tool_node"]


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
    assert shown(("skill.selected", {"skill": "spacing", "turn_id": "t"})) == ["  · skill.selected skill=spacing"]


def test_a_spent_limit_says_what_to_type_and_any_other_budget_what_it_says() -> None:
    lines = shown(
        ("budget", {"code": "limit_spent", "message": "500 of 500 tokens", "approval_id": "A1", "turn_id": "T1"}),
        ("budget", {"code": "day_tokens_spent", "message": "the day's tokens are spent"}),
    )
    assert "500 of 500 tokens" in lines[0]
    assert "turns raise T1 --tokens MORE" in lines[1] and "approvals reject A1" in lines[1]
    assert lines[2].endswith("the day's tokens are spent")
