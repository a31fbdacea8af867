"""`perdure effects`: what nobody knows, told whole, and settled once."""

from typing import Any

import pytest

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure

EFFECT: dict[str, Any] = {
    "key": "pdk_1",
    "tool": "send_note",
    "state": "outcome_unknown",
    "effect": "opaque",
    "agent": "refunds",
    "args": {"order": "1", "text": "\x1b[2J\u202e"},
    "turn_id": "t-1",
    "attempts": 2,
    "first_sent_at": "2026-11-21T10:00:00Z",
    "deadline": "2020-01-01T00:00:00Z",
    "approval": {"id": "a-1", "decided_by": "rita\x1b"},
}
SETTLED = said({"key": "pdk_1", "outcome": "happened", "settled_by": "reviewer"})


def test_effects_are_listed_with_their_arguments_and_how_to_settle_them(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"items": [EFFECT], "next": "more"}))
    listed = perdure("effects", "list").out
    assert '"order": "1"' in listed and "effects settle pdk_1" in listed and "--cursor more" in listed
    assert "\x1b" not in listed


def test_an_effect_is_shown_with_all_that_is_known_of_it_and_nothing_of_that_is_raw(
    perdure: Perdure, stack: ApiDouble
) -> None:
    stack.will(said(EFFECT))
    shown = perdure("effects", "show", "pdk_1").out
    for part in ("send_note", "opaque", "refunds", "2026-11-21 10:00:00 UTC", '"order": "1"', '"decided_by": "rita'):
        assert part in shown
    assert "settle pdk_1 happened" in shown and "settle pdk_1 did_not_happen" in shown
    assert not set(shown) & {"\u202e", "\x1b"}


def test_before_the_deadline_nobody_is_told_to_say_that_it_did_not_happen(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({**EFFECT, "deadline": "2999-01-01T00:00:00Z"}))
    shown = perdure("effects", "show", "pdk_1").out
    assert "2999-01-01 00:00:00 UTC" in shown
    assert "settle pdk_1 happened" in shown and "did_not_happen" not in shown


def test_settling_shows_the_effect_first_and_then_states_it(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(EFFECT), SETTLED)
    ended = perdure("effects", "settle", "pdk_1", "happened", "--comment", "seen")
    assert ended.code == 0 and ended.out.count('"order": "1"') == 1
    assert "decided_by" not in ended.out and "rita\\u001b" in ended.out
    assert stack.asked[1].body == {"outcome": "happened", "comment": "seen"}


def test_a_person_at_a_terminal_is_asked_before_it_is_settled(
    perdure: Perdure, stack: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda _question: False)
    stack.will(said(EFFECT))
    assert perdure("effects", "settle", "pdk_1", "happened", "--comment", "seen").code == 1
    assert len(stack.asked) == 1


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_what_is_settled_already_is_not_settled_again(
    perdure: Perdure, stack: ApiDouble, as_json: tuple[str, ...]
) -> None:
    stack.will(said({**EFFECT, "state": "done", "settled_by": "rita"}))
    ended = perdure("effects", "settle", "pdk_1", "happened", "--comment", "seen", *as_json)
    assert (ended.code, len(stack.asked)) == (5, 1) and "rita" in ended.err


@pytest.mark.parametrize(("status", "code", "exit_code"), [(409, "already_settled", 5), (409, "too_early", 1)])
def test_a_refusal_to_settle_has_its_exit_code(
    perdure: Perdure, stack: ApiDouble, status: int, code: str, exit_code: int
) -> None:
    details = {"deadline": "2026-11-21T10:00:00Z"}
    stack.will(said(EFFECT), said({"error": {"code": code, "message": "no", "details": details}}, status))
    ended = perdure("effects", "settle", "pdk_1", "did_not_happen", "--comment", "x")
    assert ended.code == exit_code and details["deadline"] in ended.err


def test_an_outcome_that_is_none_is_a_usage_error(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("effects", "settle", "pdk_1", "maybe", "--comment", "x").code == 2
    assert stack.asked == []
