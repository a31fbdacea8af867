"""The bundled examples: their folders load cleanly, and copies put anywhere are the same apps. Their scripts ask for
and say this, and report a gated call's outcome: run, run as edited by a reviewer, not run, settled by a person."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from perdure.activities.providers.scripted import Script
from perdure.activities.toolbox.engine_tools import ENGINE_TOOLS
from perdure.apps import SHIPPED, App, Engine, app_folders, load_app, publish
from perdure.apps.registry import discover_cards, list_servers
from perdure.contracts.memory import FactScope
from perdure.contracts.values import canonical_json
from perdure.core.agents.prompts import with_changed_arguments, with_memory_error
from perdure.graph.registry import names
from perdure.local.ports import free_port
from perdure.local.programs import read_app_services
from tests.scale import sized
from tests.unit.examples.payments_process import wait_until_healthy
from tests.unit.examples.scripted_answers import scripted_answer

NOTE = (
    "The call to refund was rejected by rita: paid by voucher\n"
    "It has not run. Tell the user so, with the reason, and do not call it again unless they ask."
)
SORRY = "We are sorry for the trouble with order 1042. Your next delivery is on us."


@pytest.fixture(scope="module")
def refunds_app() -> App:
    return load_app(SHIPPED / "refunds", Engine(topologies=("skill_pipeline",), script=Script))


@pytest.fixture(scope="module")
def skeleton_app() -> App:
    return load_app(SHIPPED / "skeleton", Engine(topologies=("decision_hub",), script=Script))


async def answer(app: App, *messages: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    return await scripted_answer(app.agents[0].script, messages, app.agents[0].tools)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def results(tool: str, *outputs: dict[str, Any]) -> list[dict[str, Any]]:
    """A round of calls of `tool` with their results, as the model sees them."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": tool}} for n in range(len(outputs))]
    texts = [json.dumps(output, separators=(",", ":")) for output in outputs]
    answers = [{"role": "tool", "tool_call_id": f"c{n}", "content": text} for n, text in enumerate(texts)]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *answers]


def test_the_folder_has_no_mistake_and_publishes_one_agent_whose_tools_find_its_companion(refunds_app: App) -> None:
    assert refunds_app.problems == ()
    (published,) = publish(refunds_app, [])
    assert published.definition.id == "refunds" and published.definition.topology == "skill_pipeline"
    assert [card.name for card in published.cards] == ["order_status", "refund", "send_note"]
    (companion,) = read_app_services(refunds_app.folder)
    assert companion.url_env == "PERDURE_SECRET_PAYMENTS_URL"
    assert all("payments_url" in tool.card.secrets for tool in refunds_app.tools.values())


@pytest.mark.parametrize(("text", "calls"), [
    ("Refund order 1042", [("refund", {"order": "1042"})]), ("refund order 7, please", [("refund", {"order": "7"})]),
    ("Refund orders 12 and 13", [("refund", {"order": "12"}), ("refund", {"order": "13"})]),
    ("What is the status of order 1042?", [("order_status", {"order": "1042"})]),
    ("Send a goodwill note for order 1042", [("send_note", {"order": "1042", "text": SORRY})]), ("Hello", []),
    ("/echo Refund order 1042", []),
])  # fmt: skip
async def test_a_text_asks_for_calls_that_fit(refunds_app: App, text: str, calls: list[tuple[str, Any]]) -> None:
    assert (await answer(refunds_app, user(text)))[1] == calls
    for tool, args in calls:
        refunds_app.tools[tool].parameters.bind(args)


async def test_echo_and_help_are_answered_in_words(refunds_app: App) -> None:
    assert await answer(refunds_app, user("/echo one two")) == ("one two", [])
    assert "Refund order 1042" in (await answer(refunds_app, user("Hello")))[0]


@pytest.mark.parametrize(("status", "message"), [("ok", "Order 1 was never refunded."), ("error", "no such order")])
async def test_the_status_of_an_order_comes_from_the_tools_result(refunds_app: App, status: str, message: str) -> None:
    output = {"status": status, "message": message}
    said, calls = await answer(refunds_app, user("What is the status of order 1"), *results("order_status", output))
    assert message.strip(".") in said and calls == []


async def test_after_two_refunds_the_orders_themselves_show_their_state(refunds_app: App) -> None:
    asked = user("Refund orders 12 and 13")
    denied = {"status": "denied", "message": "the approval is rejected", "reason": "no"}
    edited = {"note": "…", "arguments": {}, "result": {"status": "refunded", "message": "…"}}
    for last in ({"status": "refunded", "message": "…"}, denied, edited):
        round_of_two = results("refund", edited, last)
        calls = (await answer(refunds_app, asked, *round_of_two))[1]
        assert calls == [("order_status", {"order": "12"}), ("order_status", {"order": "13"})]
    looked = results("order_status", {"message": "Order 12: once."}, {"status": "error", "message": "Order 13: gone."})
    assert await answer(refunds_app, asked, *round_of_two, *looked) == ("Order 12: once. Order 13: gone.", [])


@pytest.mark.parametrize("reasons", [["paid by voucher"], ["paid by voucher", "too late"]])
async def test_rejections_are_acknowledged_with_their_reasons(refunds_app: App, reasons: list[str]) -> None:
    notes = "\n".join(NOTE.replace("paid by voucher", reason) for reason in reasons)
    text, calls = await answer(refunds_app, user("Refund orders 1 and 2"), {"role": "system", "content": notes})
    assert calls == [] and "rita" in text and all(reason in text for reason in reasons)


def test_the_skeletons_folder_has_no_mistake_and_publishes_one_strict_agent(skeleton_app: App) -> None:
    assert skeleton_app.problems == ()
    (published,) = publish(skeleton_app, [])
    assert (published.definition.id, published.definition.topology) == ("skeleton", "decision_hub")
    assert published.cards == () and published.definition.memory is not None
    assert published.definition.memory.facts == (FactScope.CONVERSATION, FactScope.USER)


@pytest.mark.parametrize(("text", "said"), [
    *((text, text) for text in ("what is this", "memory_write", "two\nlines")),
    ("/echo one two three", "one two three"),
    ("say nothing", ""),
])  # fmt: skip
async def test_the_same_text_gets_the_same_answer_every_time(skeleton_app: App, text: str, said: str) -> None:
    note = {"role": "system", "content": "=== Remembered (this person) ===\n- name: Ann"}
    (answered,) = {(await answer(skeleton_app, user(text)))[0].strip() for _ in range(3)}
    assert answered.endswith(said) and bool(answered) is bool(said)
    assert (await answer(skeleton_app, note, user(text)))[0].strip() == answered, (
        "what is remembered stands before what is said"
    )


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


ENGINE = Engine(core_tools=tuple(ENGINE_TOOLS), topologies=names(), script=Script)
CORE = [tool.card for tool in ENGINE_TOOLS.values()]
EXAMPLES = [folder.name for folder in app_folders((), examples=True)]
STARTED = [(name, service) for name in EXAMPLES for service in read_app_services(SHIPPED / name)]
"""Each of `make soak`; the first of `make test`."""


def copied(name: str, to: Path) -> Path:
    return Path(shutil.copytree(SHIPPED / name, to / "mine", ignore=shutil.ignore_patterns("__pycache__")))


async def versions(folder: Path, home: Path) -> dict[str, str]:
    """By agent, what a turn would pin."""
    app = load_app(folder, ENGINE)
    assert app.problems == ()
    offered = await discover_cards(app, [], lambda name: None, home)
    return {agent.definition.id: agent.version for agent in publish(app, CORE, offered.cards)}


@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_copy_is_published_under_the_same_versions(tmp_path: Path, name: str) -> None:
    found = await versions(copied(name, tmp_path), tmp_path)
    assert found and found == await versions(SHIPPED / name, tmp_path)


async def test_a_copied_server_is_started_from_its_own_folder_and_lists_what_is_locked(tmp_path: Path) -> None:
    app = load_app(copied("ops", tmp_path), ENGINE)
    listed = (await list_servers(app, lambda name: None, tmp_path))["cluster"]
    assert listed.lock == app.locks["cluster"], listed.problems


@pytest.mark.sized
@pytest.mark.parametrize(("name", "service"), STARTED[: sized(99, 1)])
def test_a_copied_service_starts_from_its_own_folder(tmp_path: Path, name: str, service: object) -> None:
    copy, port = copied(name, tmp_path), free_port()
    (declared,) = read_app_services(copy)
    assert declared == service and declared.command[0] == "python"
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ = {**given, declared.port_env: str(port), "PERDURE_COMPANION_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, *declared.command[1:]], cwd=copy, env=environ) as process:
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", process, declared.ready_path)
        finally:
            process.kill()
