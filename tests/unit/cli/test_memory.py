"""`perdure memory`: values are JSON where they can be, text where not, and clearing is one request."""

import pytest

from tests.unit.apps.api_double import ApiDouble, Reply, said
from tests.unit.cli.conftest import Perdure

PROPOSED = {
    "id": "p-1",
    "store": "team",
    "path": "runbooks/a.md",
    "title": "A",
    "type": "runbook",
    "risk": "high",
    "status": "pending",
    "sha256": "5" * 64,
    "proposed_by": "ada",
    "by_agent": True,
    "created_at": "2026-11-22T10:00:00Z",
}
MEMORY = {"conversation_id": "c-1", "fields": {"note": "\x1b[8mhidden", "n": 1}}


def test_fields_are_shown_without_what_a_terminal_would_obey(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(MEMORY))
    ended = perdure("memory", "show", "c-1")
    assert ended.code == 0 and "hidden" in ended.out and "\x1b" not in ended.out
    assert stack.asked[0].path == "/v1/memory/working/c-1"


def test_what_is_set_is_json_where_it_can_be_and_text_where_not(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(MEMORY))
    ended = perdure(
        "memory", "set", "c-1", "n=1", "gone=null", "note=two words", 'list=["a"]', "a=b=c", "--ttl-seconds", "60"
    )
    assert ended.code == 0
    assert stack.asked[0].method == "PUT"
    fields = {"n": 1, "gone": None, "note": "two words", "list": ["a"], "a": "b=c"}
    assert stack.asked[0].body == {"fields": fields, "ttl_seconds": 60}


def test_a_field_without_a_value_is_a_usage_error_and_nothing_is_sent(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("memory", "set", "c-1", "n").code == 2
    assert stack.asked == []


@pytest.mark.parametrize(("status", "code"), [(204, 0), (404, 4)])
def test_clearing_forgets_every_field(perdure: Perdure, stack: ApiDouble, status: int, code: int) -> None:
    missing = said({"error": {"code": "conversation_not_found", "message": "no"}}, 404)
    stack.will(missing if status == 404 else Reply(204))
    assert perdure("memory", "clear", "c-1").code == code
    assert [(each.method, each.path) for each in stack.asked] == [("DELETE", "/v1/memory/working/c-1")]


def test_what_is_proposed_for_everybody_is_listed_and_decided_on_as_it_was_shown(
    perdure: Perdure, stack: ApiDouble
) -> None:
    text = {**PROPOSED, "content": "Restart it.\x1b[8m"}
    stack.will(said({"items": [PROPOSED], "next": None}), said(text), said({**text, "status": "approved"}))
    listed = perdure("memory", "promotions", "list")
    assert listed.code == 0 and "p-1" in listed.out
    approved = perdure("memory", "promotions", "approve", "p-1")
    assert approved.code == 0 and "Restart it." in approved.out and "\x1b" not in approved.out
    assert "team/runbooks/a.md" in approved.out
    at = "/v1/memory/promotions/p-1"
    assert [each.path for each in stack.asked][1:] == [at, f"{at}/decision"]
    assert stack.asked[-1].body == {"decision": "approve", "sha256": "5" * 64, "comment": ""}


def test_a_promotion_is_not_rejected_without_a_reason(perdure: Perdure, stack: ApiDouble) -> None:
    assert perdure("memory", "promotions", "reject", "p-1").code == 2
    assert stack.asked == []
