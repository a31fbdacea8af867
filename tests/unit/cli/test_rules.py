"""Rules as typed by an administrator."""

import json
from typing import Any

from tests.unit.apps.api_double import ApiDouble, said
from tests.unit.cli.conftest import Perdure

BOOKED: dict[str, Any] = {
    "id": "desk/parcels:booked",
    "on": "after_tool_call",
    "when": {"tool": "book"},
    "do": "abort",
    "overridden": True,
    "checkpoint": "before_sending",
}
ASKED: dict[str, Any] = {"id": "platform:ask", "on": "before_tool_call", "do": "require_hitl", "overridden": False}
RULES = {"items": [BOOKED, ASKED], "next": None}


def test_rules_are_listed_as_the_tenant_has_them(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(RULES))
    ended = perdure("rules", "list")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.splitlines()]
    assert ["desk/parcels:booked", "after_tool_call", "abort", "yes", "before_sending"] in lines
    assert ["platform:ask", "before_tool_call", "require_hitl"] in lines
    assert (stack.asked[0].method, stack.asked[0].path) == ("GET", "/v1/rules")


def test_a_rule_is_set_and_shown_alone(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(RULES))
    ended = perdure("rules", "set", "desk/parcels:booked", "abort", "--json")
    assert ended.code == 0
    assert [(rule["id"], rule["do"]) for rule in json.loads(ended.out)["items"]] == [("desk/parcels:booked", "abort")]
    assert (stack.asked[0].method, stack.asked[0].path) == ("PUT", "/v1/rules")
    assert stack.asked[0].body == {"rule": "desk/parcels:booked", "do": "abort"}


def test_a_rule_that_is_not_there_is_said_so(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said({"error": {"code": "rule_not_found", "message": "there is no such rule"}}, 404))
    ended = perdure("rules", "set", "nobody", "abort")
    assert ended.code == 4 and "rule_not_found" in ended.err


TOOLS = {"items": [{"tool": "memory_patch", "approval": False}, {"tool": "memory_propose_promotion", "approval": True}]}


def test_the_approval_of_a_memory_tool_is_waived_and_asked_for_again(perdure: Perdure, stack: ApiDouble) -> None:
    stack.will(said(TOOLS), said(TOOLS), said(TOOLS))
    for typed, approval in ((("waive", "memory_patch"), False), (("waive", "memory_patch", "--undo"), True)):
        ended = perdure("rules", *typed)
        assert ended.code == 0 and all(each["tool"] in ended.out for each in TOOLS["items"])
        assert stack.asked[-1].body == {"tool": "memory_patch", "approval": approval}
    ended = perdure("rules", "tools", "--json")
    assert json.loads(ended.out)["items"] == TOOLS["items"]
    assert (stack.asked[-1].method, stack.asked[-1].path) == ("GET", "/v1/rules/tools")
