"""The bundled agents report a gated call's outcome: run, run as edited by a reviewer, not run, settled by a person."""

from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from perdure.apps import SHIPPED
from perdure.contracts.values import canonical_json
from perdure.core.agents.prompts import with_changed_arguments, with_memory_error
from tests.unit.examples.scripted_answers import scripted_answer

TEMPLATE = SHIPPED.parent / "apps" / "template"
BOOKED = {"status": "booked", "number": 4, "provider": "p2", "slot": "Friday"}
WELL = {"status": "created", "entity": {"id": "e1", "kind": "well", "name": "W"}}
RAN: list[tuple[str, str, dict[str, Any], str]] = [
    ("care/scripts/care_navigator", "book_session", BOOKED, "p2, Friday, number 4"),
    ("ops/scripts/ops", "cluster_k8s_deployment_restart", {"status": "restarted", "message": "Done so."}, "Done so."),
    ("refunds/scripts/refunds", "refund", {"status": "refunded", "message": "It is paid."}, "It is paid."),
    ("refunds/scripts/refunds", "send_note", {"status": "sent", "message": "It is out."}, "It is out."),
    ("filings/scripts/rule_37", "create_entity", WELL, "e1"),
    ("template/scripts/desk", "open_ticket", {"status": "open", "number": 7, "title": "T"}, "7"),
]
NAMES = [tool for _, tool, _, _ in RAN]


async def said(script: str, tool: str, output: dict[str, Any]) -> str:
    """What the agent's script says to the result of a call."""
    path = (TEMPLATE.parent if script.startswith("template/") else SHIPPED) / f"{script}.yaml"
    read = yaml.safe_load(path.read_text())
    call = {"id": "c1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    messages = (
        {"role": "user", "content": "do it"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": canonical_json(output)},
    )
    text, _ = await scripted_answer(read, messages)
    assert text.strip() != read["fallback"].strip()
    return text


@pytest.mark.parametrize(("script", "tool", "output", "told"), RAN, ids=NAMES)
async def test_a_call_is_reported_as_run_or_changed(script: str, tool: str, output: dict[str, Any], told: str) -> None:
    ran = await said(script, tool, output)
    assert told in ran
    edited = await said(script, tool, with_changed_arguments({"any": "thing"}, output))
    assert edited.endswith(ran) and edited != ran
    assert await said(script, tool, with_memory_error("memory_full", "Too much.", output)) == ran


@pytest.mark.parametrize(("script", "tool", "ran", "told"), RAN, ids=NAMES)
async def test_why_a_call_did_not_run_is_reported(script: str, tool: str, ran: dict[str, Any], told: str) -> None:
    denied = {"status": "denied", "message": "the approval is rejected", "reason": "not today"}
    for output in (denied, {"status": "error", "message": "no such thing"}):
        text = await said(script, tool, output)
        assert output["message"] in text and text != output["message"] and told not in text
        assert text != await said(script, tool, {**ran, "message": output["message"]}), "not told as one that ran"


@pytest.mark.parametrize(
    ("script", "tool"), [(s, t) for s, t, _, _ in RAN if t not in ("create_entity", "open_ticket")]
)
async def test_a_settled_outcome_is_reported_as_recorded(script: str, tool: str, snapshot: SnapshotAssertion) -> None:
    """A `local` call is never unknown, and the ticket desk of the template is keyed."""
    settled = {"settled_by": "rita", "comment": "I looked"}
    told = [await said(script, tool, {"status": status, **settled}) for status in ("happened", "did_not_happen")]
    assert told == snapshot, "that it happened, that it did not"
